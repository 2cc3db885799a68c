// A library of somebody else's whose functions are called on a thread while the process exits.
#pragma once

namespace tutti {

// From now on what the library that dlopen() has returned as `handle` registers for the process's end, the destructors
// of its statics, is dropped: they are never destroyed, and never under a thread that is in one of its functions. What
// it has registered before, while it was loaded, stays.
//
// exit() runs first what was registered last. A library that makes statics at their first use, deep in one of its
// functions, has them destroyed before anything that its user can have registered in time to wait for its threads.
//
// Done where the library has the address of __cxa_atexit. Throws Unsupported if that cannot be written to.
void keep_statics_of(void* handle);

}  // namespace tutti
