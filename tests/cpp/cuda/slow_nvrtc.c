/* A stand-in for NVRTC whose compilations take a while, and which ends the process with 66 if what it has registered
 * for the process's end comes while one is under way. As the real one it registers more the first time that it compiles.
 * Where the source is a number, it writes a byte to that descriptor as it begins. Where another number follows, it
 * waits for a byte of that descriptor before the while.
 *
 * C, and without the options of the build, so that what it registers is what it says. */
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile int begun, ended, descriptor, awaited;

static void end(void) {
  if (begun != ended) _exit(66);
}

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers, const char* const* texts,
                       const char* const* names) {
  (void)name, (void)headers, (void)texts, (void)names;
  char* rest = NULL;
  descriptor = (int)strtol(source, &rest, 10);
  awaited = (int)strtol(rest, NULL, 10);
  *program = (void*)&begun;
  return 0;
}
int nvrtcCompileProgram(void* program, int options, const char* const* list) {
  const struct timespec a_while = {0, 300 * 1000 * 1000};
  (void)program, (void)options, (void)list;
  if (begun++ == 0) atexit(end);
  char byte = 0;
  if (descriptor > 0 && write(descriptor, "!", 1) != 1) return 1;
  if (awaited > 0 && read(awaited, &byte, 1) != 1) return 1;
  nanosleep(&a_while, NULL);
  ++ended;
  return 0;
}
int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = 0;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* log) {
  (void)program, (void)log;
  return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = 1;
  return 0;
}
int nvrtcGetCUBIN(void* program, char* code) {
  (void)program;
  *code = 'c';
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  (void)program;
  return 0;
}
const char* nvrtcGetErrorString(int result) {
  (void)result;
  return "no";
}
