/* Every function of tutti.h, by three ranks that are processes: results, errors as codes with text, ends. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 5 };

#define CHECK(condition)                                                                                   \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, tutti_last_error()); \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)
#define OK(call) CHECK((call) == TUTTI_SUCCESS)

static int pipe_ends[RANKS][2]; /* one for each reader: none takes what is for another */

/* Rank 0's new id on all ranks. */
static tutti_id shared_id(int rank) {
  tutti_id id;
  if (rank == 0) {
    OK(tutti_make_id("localhost", &id));
    for (int other = 1; other < RANKS; ++other) {
      CHECK(write(pipe_ends[other][1], &id, sizeof(id)) == (ssize_t)sizeof(id));
    }
  } else {
    CHECK(read(pipe_ends[rank][0], &id, sizeof(id)) == (ssize_t)sizeof(id));
  }
  return id;
}

static tutti_group* make_group(int rank, const char* name) {
  const tutti_id id = shared_id(rank);
  const tutti_options options = {sizeof(options), 60000, name};
  tutti_group* group = NULL;
  OK(tutti_group_create(&id, rank, RANKS, &options, &group));
  CHECK(group != NULL && tutti_group_rank(group) == rank && tutti_group_size(group) == RANKS);
  return group;
}

static void reductions(tutti_group* group, int rank) {
  const int64_t sum = 1 + 2 + 3;
  int64_t in[RANKS * COUNT], out[COUNT];
  for (int i = 0; i < RANKS * COUNT; ++i) in[i] = rank + 1;
  OK(tutti_all_reduce(group, in, out, COUNT, TUTTI_INT64, TUTTI_SUM));
  for (int i = 0; i < COUNT; ++i) CHECK(out[i] == sum);
  OK(tutti_all_reduce(group, out, out, COUNT, TUTTI_INT64, TUTTI_MAX));
  CHECK(out[COUNT - 1] == sum);
  OK(tutti_reduce(group, in, rank == 1 ? out : NULL, COUNT, TUTTI_INT64, TUTTI_PRODUCT, 1));
  if (rank == 1) CHECK(out[0] == 6);
  OK(tutti_reduce_scatter(group, in, out, COUNT, TUTTI_INT64, TUTTI_SUM));
  CHECK(out[0] == sum && out[COUNT - 1] == sum);
}

static void moves(tutti_group* group, int rank) {
  double block[COUNT], all[RANKS * COUNT], other[RANKS * COUNT];
  for (int i = 0; i < COUNT; ++i) block[i] = rank;
  OK(tutti_all_gather(group, block, all, COUNT, TUTTI_FLOAT64));
  for (int i = 0; i < RANKS * COUNT; ++i) CHECK(all[i] == i / COUNT);
  OK(tutti_all_to_all(group, all, other, COUNT, TUTTI_FLOAT64));
  for (int i = 0; i < RANKS * COUNT; ++i) CHECK(other[i] == rank);
  OK(tutti_scatter(group, rank == 2 ? all : NULL, block, COUNT, TUTTI_FLOAT64, 2));
  CHECK(block[0] == rank);
  OK(tutti_gather(group, block, rank == 0 ? other : NULL, COUNT, TUTTI_FLOAT64, 0));
  if (rank == 0) CHECK(memcmp(other, all, sizeof(all)) == 0);
  OK(tutti_broadcast(group, block, COUNT, TUTTI_FLOAT64, 1));
  CHECK(block[COUNT - 1] == 1);
  OK(tutti_barrier(group));
}

static void messages(tutti_group* group, int rank) {
  uint8_t bytes[3] = {1, 2, (uint8_t)rank};
  int source = -2;
  if (rank == 0) {
    for (int i = 1; i < RANKS; ++i) {
      OK(tutti_recv(group, bytes, 3, TUTTI_BYTE, TUTTI_ANY_SOURCE, 7, &source));
      CHECK(source == bytes[2]);
    }
    OK(tutti_recv(group, bytes, 0, TUTTI_BYTE, 2, 8, NULL));
  } else {
    OK(tutti_send(group, bytes, 3, TUTTI_BYTE, 0, 7));
    if (rank == 2) OK(tutti_send(group, NULL, 0, TUTTI_BYTE, 0, 8));
  }
}

/* Ranks 2 and 0 make one group, in this order, and rank 1 none. */
static void splits(tutti_group* group, int rank) {
  tutti_group* part = NULL;
  OK(tutti_group_split(group, rank == 1 ? -1 : 5, -rank, NULL, &part));
  CHECK((part == NULL) == (rank == 1));
  if (part != NULL) {
    int32_t value = rank;
    CHECK(tutti_group_size(part) == 2 && tutti_group_rank(part) == (rank == 2 ? 0 : 1));
    OK(tutti_broadcast(part, &value, 1, TUTTI_INT32, 0));
    CHECK(value == 2);
  }
  tutti_group_destroy(part);
  /* A group of one. */
  OK(tutti_group_split(group, rank, 0, "alone", &part));
  CHECK(tutti_group_size(part) == 1);
  OK(tutti_barrier(part));
  tutti_group_destroy(part);
}

/* The group stays usable. */
static void refusals(tutti_group* group) {
  float value = 1;
  CHECK(tutti_broadcast(group, &value, 1, TUTTI_FLOAT32, RANKS) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error(), "root 3") != NULL);
  CHECK(tutti_all_reduce(group, &value, &value, 1, TUTTI_FLOAT32, TUTTI_BAND) != TUTTI_SUCCESS);
  CHECK(tutti_all_reduce(group, &value, &value, 1, 99, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error(), "99 is no tutti_type") != NULL);
  CHECK(tutti_all_reduce(group, &value, &value, 1, 11, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT);
  CHECK(strstr(tutti_last_error(), "11 is no tutti_type") != NULL);
  CHECK(tutti_all_reduce(group, &value, &value, 1, TUTTI_FLOAT32, -1) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_all_reduce(group, NULL, &value, 1, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_all_gather(group, &value, &value, SIZE_MAX / 4, TUTTI_FLOAT32) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_send(group, &value, SIZE_MAX, TUTTI_FLOAT32, 0, 0) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_barrier(NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(strcmp(tutti_last_error(), "tutti_barrier: group is NULL") == 0);
  OK(tutti_barrier(group));
}

static void refused_ids(void) {
  tutti_id id;
  tutti_group* group = (tutti_group*)&id;
  memset(&id, 0, sizeof(id));
  CHECK(tutti_group_create(&id, 0, 1, NULL, &group) == TUTTI_INVALID_ARGUMENT && group == NULL);
  CHECK(strstr(tutti_last_error(), "no id of a group") != NULL);
  CHECK(tutti_group_create(NULL, 0, 1, NULL, &group) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_make_id(NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  OK(tutti_make_id("localhost", &id));
  CHECK(tutti_group_create(&id, 3, 3, NULL, &group) == TUTTI_INVALID_ARGUMENT);
  const tutti_options old = {1, 0, NULL};
  CHECK(tutti_group_create(&id, 0, 1, &old, &group) == TUTTI_INVALID_ARGUMENT);
  /* That id is of no more use. */
  OK(tutti_make_id("localhost", &id));
  OK(tutti_group_create(&id, 0, 1, NULL, &group));
  tutti_group_destroy(group);
  CHECK(tutti_group_rank(NULL) == -1 && tutti_group_size(NULL) == -1);
  CHECK(tutti_type_bytes(TUTTI_COMPLEX128) == 16 && tutti_type_bytes(TUTTI_FLOAT8_E5M2) == 1);
  const tutti_type none[] = {-1, 11, 12, 13, 18, 22};
  for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); ++i) CHECK(tutti_type_bytes(none[i]) == 0);
  CHECK(strcmp(tutti_result_name(TUTTI_MISMATCH), "TUTTI_MISMATCH") == 0);
}

/* What a death has left goes on. */
static void shrinks(tutti_group* group, int rank) {
  tutti_group* smaller = (tutti_group*)&group;
  int members[RANKS] = {-1, -1, -1};
  tutti_id id;
  memset(&id, 0, sizeof(id));
  CHECK(tutti_group_shrink(group, &id, 0, members, &smaller) == TUTTI_INVALID_ARGUMENT && smaller == NULL);
  CHECK(strstr(tutti_last_error(), "no id of a group") != NULL);
  CHECK(tutti_group_shrink(group, NULL, 0, members, &smaller) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_group_shrink(group, &id, -1, members, &smaller) == TUTTI_INVALID_ARGUMENT);
  if (rank == 0) {
    OK(tutti_make_id("localhost", &id));
    CHECK(write(pipe_ends[1][1], &id, sizeof(id)) == (ssize_t)sizeof(id));
  } else {
    CHECK(read(pipe_ends[rank][0], &id, sizeof(id)) == (ssize_t)sizeof(id));
  }
  OK(tutti_group_shrink(group, &id, 0, members, &smaller));
  tutti_group_destroy(group);
  CHECK(members[0] == 0 && members[1] == 1 && members[2] == -1);
  int32_t value = rank + 1;
  CHECK(tutti_group_size(smaller) == 2 && tutti_group_rank(smaller) == rank);
  OK(tutti_all_reduce(smaller, &value, &value, 1, TUTTI_INT32, TUTTI_SUM));
  CHECK(value == 3);
  tutti_group_destroy(smaller);
}

/* For what rank 1 alone reads, or is given: all hear who and why, long before their time is over. */
static void one_cannot_join(int rank) {
  tutti_id id = shared_id(rank);
  tutti_options options = {sizeof(options), 600000, "told"};
  tutti_group* group = (tutti_group*)&id;
  if (rank == 1) CHECK(setenv("TUTTI_STAGE_BYTES", "x", 1) == 0);
  CHECK(tutti_group_create(&id, rank, RANKS, &options, &group) ==
        (rank == 1 ? TUTTI_INVALID_ARGUMENT : TUTTI_PEER_LOST));
  CHECK(strstr(tutti_last_error(), "TUTTI_STAGE_BYTES=x is not valid") != NULL && group == NULL);
  CHECK(rank == 1 || strstr(tutti_last_error(), "rank 1 cannot join") != NULL);
  CHECK(unsetenv("TUTTI_STAGE_BYTES") == 0);

  id = shared_id(rank);
  if (rank == 1) options.size = 1;
  CHECK(tutti_group_create(&id, rank, RANKS, &options, &group) ==
        (rank == 1 ? TUTTI_INVALID_ARGUMENT : TUTTI_PEER_LOST));
  CHECK(strstr(tutti_last_error(), "options.size is not sizeof(tutti_options)") != NULL);
}

/* Each ends its group. */
static void failures(int rank) {
  float values[2] = {1, 1};
  tutti_group* group = make_group(rank, "mismatch");
  CHECK(tutti_all_reduce(group, values, values, rank == 0 ? 1 : 2, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_MISMATCH);
  CHECK(strstr(tutti_last_error(), "different calls") != NULL);
  tutti_group_destroy(group);

  group = make_group(rank, "abort");
  if (rank == 1) tutti_group_abort(group, "had enough");
  CHECK(tutti_barrier(group) == (rank == 1 ? TUTTI_ABORTED : TUTTI_PEER_LOST));
  tutti_group_destroy(group);

  group = make_group(rank, "death");
  if (rank == 2) raise(SIGKILL);
  CHECK(tutti_barrier(group) == TUTTI_PEER_LOST);
  CHECK(strstr(tutti_last_error(), "rank 2") != NULL);
  shrinks(group, rank);
}

static void run_rank(int rank) {
  refused_ids();
  one_cannot_join(rank);
  tutti_group* group = make_group(rank, "test");
  reductions(group, rank);
  moves(group, rank);
  messages(group, rank);
  splits(group, rank);
  refusals(group);
  tutti_group_destroy(group);
  failures(rank);
  exit(0);
}

int main(void) {
  for (int rank = 0; rank < RANKS; ++rank) {
    if (pipe(pipe_ends[rank]) != 0) return 1;
  }
  pid_t ranks[RANKS];
  for (int rank = 0; rank < RANKS; ++rank) {
    ranks[rank] = fork();
    if (ranks[rank] < 0) return 1;
    if (ranks[rank] == 0) {
      alarm(100);
      run_rank(rank);
    }
  }
  int failed = 0;
  for (int rank = 0; rank < RANKS; ++rank) {
    int status = 0;
    if (waitpid(ranks[rank], &status, 0) != ranks[rank]) return 1;
    const int as_it_should =
        rank == 2 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!as_it_should) failed = 1;
  }
  return failed;
}
