// Plans that are not written out, as tutti._core offers them: templates and generated ones.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_templates(nanobind::module_& m);

}  // namespace tutti
