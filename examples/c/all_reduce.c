/* Four processes add up their vectors. One of them makes the group's id; here it goes to the others through a pipe, in
 * your program through whatever it has: a launcher, a socket, a broadcast of MPI.
 *
 *   cc all_reduce.c -I include -L FOLDER -ltutti_c -Wl,-rpath,FOLDER && ./a.out
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 1000 };

/* Ends this rank with the text of what went wrong. */
static void check(tutti_result result, const char* what) {
  if (result == TUTTI_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", what, tutti_result_name(result), tutti_last_error());
  exit(1);
}

static void run_rank(int rank, const int* pipe_ends) {
  tutti_id id;
  if (rank == 0) {
    /* All ranks are on this machine; between machines NULL lets Tutti choose the address. */
    check(tutti_make_id("localhost", &id), "tutti_make_id");
    for (int other = 1; other < RANKS; ++other) {
      if (write(pipe_ends[1], &id, sizeof(id)) != (ssize_t)sizeof(id)) exit(1);
    }
  } else if (close(pipe_ends[1]) != 0 || read(pipe_ends[0], &id, sizeof(id)) != (ssize_t)sizeof(id)) {
    exit(1);
  }

  tutti_options options = {sizeof(options), 30000, "example"};
  tutti_group* group = NULL;
  check(tutti_group_create(&id, rank, RANKS, &options, &group), "tutti_group_create");

  float values[COUNT];
  for (int i = 0; i < COUNT; ++i) values[i] = (float)(rank + 1);
  check(tutti_all_reduce(group, values, values, COUNT, TUTTI_FLOAT32, TUTTI_SUM), "tutti_all_reduce");
  printf("rank %d of %d: every element is %g\n", tutti_group_rank(group), tutti_group_size(group), values[COUNT - 1]);

  const int right = values[0] == 10.0f && values[COUNT - 1] == 10.0f;
  tutti_group_destroy(group);
  exit(right ? 0 : 1);
}

int main(void) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  for (int rank = 0; rank < RANKS; ++rank) {
    const pid_t process = fork();
    if (process < 0) return 1;
    if (process == 0) run_rank(rank, pipe_ends);
  }
  close(pipe_ends[1]); /* so that nobody waits for an id that will not come */
  int failed = 0;
  for (int rank = 0; rank < RANKS; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}
