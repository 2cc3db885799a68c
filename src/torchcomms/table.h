// Whether a library has the virtual functions of a class where the headers had them that this one was compiled with.
//
// TorchComms compares the version of its interface, a string that has stayed the same while the interface changed. A
// call would then run another function than the one that was meant. So the tables of virtual functions in the installed
// library are looked at: their size, and the names of what they hold. What a library does not export, or names
// differently, is not compared; types of arguments and layouts of structures are not, either.
//
// Ownership: none kept. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace tutti::torchcomms {

struct VirtualFunction {
  const char* name;
  std::size_t place;  // in its table
};

// A class of torch::comms.
struct ClassOfHeaders {
  std::string name;
  std::string implementation;  // a class of the library's that implements it: a table of names, not of pure functions
  std::size_t size;            // functions in its table
  std::vector<VirtualFunction> functions;
};

// By the C++ ABI that GCC and Clang share, a pointer to a virtual function holds its offset in the table, to which some
// processors add one.
template <typename Function>
std::size_t place_of(Function function) {
  std::ptrdiff_t words[2];
  static_assert(sizeof function == sizeof words);
  std::memcpy(words, &function, sizeof words);
  return static_cast<std::size_t>(words[0]) / sizeof(void*);
}

// What is elsewhere in `library` (of dlopen()), empty where nothing is.
std::string difference(void* library, const ClassOfHeaders& headers);

}  // namespace tutti::torchcomms
