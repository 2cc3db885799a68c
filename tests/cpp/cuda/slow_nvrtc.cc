// A stand-in for NVRTC whose compilations take a while, and which ends the process with 66 if it is unloaded while one
// is under way or none has ended.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

namespace {

std::atomic<int> begun{0}, ended{0};

struct End {
  ~End() {
    if (begun == 0 || begun != ended) ::_exit(66);
  }
} end;

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  ++begun;
  *program = &begun;
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) {
  *bytes = 0;
  return 0;
}
int nvrtcGetProgramLog(void*, char*) { return 0; }
int nvrtcGetCUBINSize(void*, std::size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetCUBIN(void*, char* code) {
  *code = 'c';
  return 0;
}
int nvrtcDestroyProgram(void**) {
  ++ended;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "no"; }

}  // extern "C"
