// The functions of NCCL that are passed on as they are, each under both its names.
#include "nccl/real_library.h"

#define TUTTI_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

#define TUTTI_NCCL_FORWARD(result, name, parameters, arguments)                         \
  TUTTI_NCCL_EXPORT result name parameters { return TUTTI_NCCL_PASS(name, arguments); } \
  TUTTI_NCCL_EXPORT result p##name parameters __attribute__((alias(#name)));

TUTTI_NCCL_FORWARDED(TUTTI_NCCL_FORWARD)
TUTTI_NCCL_UNDECLARED(TUTTI_NCCL_FORWARD)
