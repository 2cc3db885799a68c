#include "algorithm/net/net_algorithms.h"

#include "algorithm/net/families.h"

namespace tutti {

// In order of preference: what has the least latency for small messages first, what fits always last.
AlgorithmList net_algorithms() {
  AlgorithmList all;
  for (const AlgorithmList& family :
       {dissemination_algorithms(), tree_algorithms(), ring_algorithms(), direct_algorithms(), linear_algorithms()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

}  // namespace tutti
