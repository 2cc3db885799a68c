// A library that is no plug-in, for the registry's tests.
extern "C" __attribute__((visibility("default"))) int some_other_symbol() noexcept { return 7; }
