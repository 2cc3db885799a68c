/* Tutti from C: groups of ranks and the collectives among them, on host memory. Link libtutti_c.so.
 *
 * Errors: every call that can fail returns TUTTI_SUCCESS or what the caller can do about it; tutti_last_error() gives
 * the text. Refused arguments (TUTTI_INVALID_ARGUMENT, TUTTI_UNSUPPORTED) leave the group usable; after any other
 * failure its later calls fail too, and what is left to do is tutti_group_destroy().
 *
 * Ownership: a group is its creator's until tutti_group_destroy(); memory of calls is the caller's, and no longer in
 * use when the call returns. Threads: every function may be called from any thread; the collectives of a group by all
 * its ranks in the same order. After fork() the child cannot use groups of its parent; one that only has made ids can
 * fork.
 *
 * Names and numbers here keep their meaning; new ones are added behind. */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_C_API __attribute__((visibility("default")))

enum {
  TUTTI_SUCCESS = 0,
  TUTTI_INVALID_ARGUMENT = 1, /* refused before anything was sent: mend the arguments */
  TUTTI_UNSUPPORTED = 2,      /* not for this type or operation: choose another */
  TUTTI_MISMATCH = 3,         /* the ranks made different calls: mend the program */
  TUTTI_TIMEOUT = 4,          /* a rank did not come in time: look at it, or allow more time */
  TUTTI_PEER_LOST = 5,        /* a rank died or left: start again */
  TUTTI_ABORTED = 6,          /* this rank aborted the group */
  TUTTI_EXHAUSTED = 7,        /* no memory, descriptors or ports left: free some, raise a limit */
  TUTTI_INTERNAL = 8          /* a bug in Tutti or a broken system call: report it */
};
typedef int32_t tutti_result; /* wide enough for numbers of later versions */

enum {
  TUTTI_BOOL = 0,
  TUTTI_UINT8 = 1,
  TUTTI_INT8 = 2,
  TUTTI_UINT16 = 3,
  TUTTI_INT16 = 4,
  TUTTI_UINT32 = 5,
  TUTTI_INT32 = 6,
  TUTTI_UINT64 = 7,
  TUTTI_INT64 = 8,
  TUTTI_FLOAT8_E4M3FN = 9,
  TUTTI_FLOAT8_E5M2 = 10,
  TUTTI_BFLOAT16 = 14,
  TUTTI_FLOAT16 = 15,
  TUTTI_FLOAT32 = 16,
  TUTTI_FLOAT64 = 17,
  TUTTI_COMPLEX64 = 19,
  TUTTI_COMPLEX128 = 20,
  TUTTI_BYTE = 21 /* moved, never reduced */
};
typedef int32_t tutti_type;

enum {
  TUTTI_SUM = 0,
  TUTTI_AVG = 1,
  TUTTI_PRODUCT = 2,
  TUTTI_MIN = 3,
  TUTTI_MAX = 4,
  TUTTI_BAND = 5,
  TUTTI_BOR = 6,
  TUTTI_BXOR = 7
};
typedef int32_t tutti_op;

typedef struct tutti_group tutti_group;

/* What the ranks of one group need to find each other: an address and a secret. One rank makes it, whatever starts the
 * ranks carries its bytes to the others. Who knows it can join: keep it as you would a key. */
typedef struct tutti_id {
  char bytes[128];
} tutti_id;

typedef struct tutti_options {
  size_t size;        /* sizeof(tutti_options) */
  int64_t timeout_ms; /* of forming and of every call; 0: half an hour */
  const char* name;   /* for messages; NULL: "tutti" */
} tutti_options;

/* The text of the last failure on this thread; "" before the first. Valid until the next one. */
TUTTI_C_API const char* tutti_last_error(void);
/* "TUTTI_TIMEOUT". */
TUTTI_C_API const char* tutti_result_name(tutti_result result);
TUTTI_C_API size_t tutti_type_bytes(tutti_type type); /* 0 for a number that is no type */

/* `address`: a name or number of this machine that all ranks reach; NULL: TUTTI_SOCKET_IFNAME, or the way to
 * MASTER_ADDR, or the first interface that leads outside. This process must live until the group has formed;
 * of the ids of a process at most 64 may be unused, a further one ends the oldest. */
TUTTI_C_API tutti_result tutti_make_id(const char* address, tutti_id* id);

/* Returns when all `size` ranks have joined. An id makes one group. `options` may be NULL; TUTTI_* variables of the
 * environment hold as everywhere. What keeps one rank from joining, these included, is told to all. */
TUTTI_C_API tutti_result tutti_group_create(const tutti_id* id, int rank, int size, const tutti_options* options,
                                            tutti_group** group);
/* A call of all ranks of `group`: those with the same color make a new group, in the order of `key`, then of rank. A
 * negative color gives NULL. `name` may be NULL: the parent's, with the color. A death of which the parent or a part
 * learns ends both, where the dead rank is in them. */
TUTTI_C_API tutti_result tutti_group_split(tutti_group* group, int color, int key, const char* name,
                                           tutti_group** part);
/* After a failure: a call of the ranks of `group` that are still there, which make a new group, in their old order.
 * `id` is a new one, the same on all of them; who waits for it calls tutti_group_abort() first. Those that do not come
 * within `timeout_ms` (0: the group's) are left out.
 * `members` may be NULL; else it has room for the ranks of `group`, and the old ranks of the new group are put there.
 * `group` is aborted; destroy it. A process that dies meanwhile is TUTTI_PEER_LOST: shrink once more, by another id. */
TUTTI_C_API tutti_result tutti_group_shrink(tutti_group* group, const tutti_id* id, int64_t timeout_ms, int* members,
                                            tutti_group** smaller);
/* Leaves the group in good order. No call of it may be under way on another thread, and none may follow; who must not
 * wait for one aborts the group first. NULL is no group and nothing is done. */
TUTTI_C_API void tutti_group_destroy(tutti_group* group);
/* Every waiting and later call of the group fails, on this rank by TUTTI_ABORTED, on the others by TUTTI_PEER_LOST. */
TUTTI_C_API void tutti_group_abort(tutti_group* group, const char* reason);
TUTTI_C_API int tutti_group_rank(const tutti_group* group);
TUTTI_C_API int tutti_group_size(const tutti_group* group);

/* Collectives. `count`: elements of one block; where it says "size blocks" they lie one after another, in rank order.
 * What a rank neither reads nor writes may be NULL. */

/* One block to one block, which may be the same memory. */
TUTTI_C_API tutti_result tutti_all_reduce(tutti_group* group, const void* input, void* output, size_t count,
                                          tutti_type type, tutti_op op);
/* The same; `output` at the root only. */
TUTTI_C_API tutti_result tutti_reduce(tutti_group* group, const void* input, void* output, size_t count,
                                      tutti_type type, tutti_op op, int root);
TUTTI_C_API tutti_result tutti_broadcast(tutti_group* group, void* data, size_t count, tutti_type type, int root);
/* One block to size blocks; the input may be its own block of the output. */
TUTTI_C_API tutti_result tutti_all_gather(tutti_group* group, const void* input, void* output, size_t count,
                                          tutti_type type);
TUTTI_C_API tutti_result tutti_gather(tutti_group* group, const void* input, void* output, size_t count,
                                      tutti_type type, int root);
/* Size blocks to one, which may be the own block of the input. */
TUTTI_C_API tutti_result tutti_scatter(tutti_group* group, const void* input, void* output, size_t count,
                                       tutti_type type, int root);
TUTTI_C_API tutti_result tutti_reduce_scatter(tutti_group* group, const void* input, void* output, size_t count,
                                              tutti_type type, tutti_op op);
/* Size blocks to size blocks, of other memory. */
TUTTI_C_API tutti_result tutti_all_to_all(tutti_group* group, const void* input, void* output, size_t count,
                                          tutti_type type);
TUTTI_C_API tutti_result tutti_barrier(tutti_group* group);

/* Messages, matched by peer, tag and order; count and type must agree. */
#define TUTTI_ANY_SOURCE (-1)
TUTTI_C_API tutti_result tutti_send(tutti_group* group, const void* data, size_t count, tutti_type type, int peer,
                                    uint64_t tag);
/* `source` may be NULL; else the sender is put there. */
TUTTI_C_API tutti_result tutti_recv(tutti_group* group, void* data, size_t count, tutti_type type, int peer,
                                    uint64_t tag, int* source);

#ifdef __cplusplus
}
#endif

#endif /* TUTTI_TUTTI_H */
