// Metrics as Python has them: one place for both libraries that bind, whose dictionaries and lists look alike.
#pragma once

#include "tutti/metrics.h"

namespace tutti {

template <class Dict, class List>
Dict to_dict(const Metrics& metrics) {
  List rows;
  for (const MetricsRow& row : metrics.rows) {
    Dict out;
    out["device"] = row.device;
    out["collective"] = row.collective;
    out["size_class"] = row.size_class;
    out["algorithm"] = row.algorithm;
    out["calls"] = row.calls;
    out["bytes"] = row.bytes;
    out["timed_calls"] = row.timed_calls;
    out["total_ns"] = row.total_ns;
    out["wait_ns"] = row.wait_ns;
    out["p50_ns"] = row.p50_ns;
    rows.append(out);
  }
  Dict out;
  out["rows"] = rows;
  out["mapped_calls"] = metrics.mapped_calls;
  out["errors"] = metrics.errors;
  out["rescued_waits"] = metrics.rescued_waits;
  out["device_calls"] = metrics.device_calls;
  return out;
}

}  // namespace tutti
