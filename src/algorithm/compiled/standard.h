// What kernels use of the C++ standard library, for a compiler that comes without one: stands for <cstddef>, <cstdint>,
// <cstring>, <string_view> and <type_traits> when a plan is compiled at run time.
#pragma once

namespace std {

using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
using uintptr_t = unsigned long;
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
enum class byte : unsigned char {};

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
inline constexpr bool is_integral_v = is_same_v<T, bool> || is_same_v<T, int8_t> || is_same_v<T, int16_t> ||
                                      is_same_v<T, int32_t> || is_same_v<T, int64_t> || is_same_v<T, uint8_t> ||
                                      is_same_v<T, uint16_t> || is_same_v<T, uint32_t> || is_same_v<T, uint64_t>;
template <class T>
inline constexpr bool is_signed_v = T(-1) < T(0);

template <bool kFirst, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kFirst, class A, class B>
using conditional_t = typename conditional<kFirst, A, B>::type;

class string_view;  // named in declarations only

}  // namespace std
