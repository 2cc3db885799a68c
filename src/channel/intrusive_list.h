// A doubly linked list through two members of its elements: no allocation, removal from the middle in constant time.
//
// Owns nothing. An element is in at most one list of the same two members. Thread rule: none of its own.
#pragma once

namespace tutti {

template <class T, T* T::*Next, T* T::*Prev>
class IntrusiveList {
 public:
  bool empty() const noexcept { return front_ == nullptr; }
  T* front() const noexcept { return front_; }
  static T* next(const T* element) noexcept { return element->*Next; }

  void push_back(T* element) noexcept {
    element->*Next = nullptr;
    element->*Prev = back_;
    (back_ != nullptr ? back_->*Next : front_) = element;
    back_ = element;
  }

  void erase(T* element) noexcept {
    T* next = element->*Next;
    T* prev = element->*Prev;
    (prev != nullptr ? prev->*Next : front_) = next;
    (next != nullptr ? next->*Prev : back_) = prev;
    element->*Next = element->*Prev = nullptr;
  }

  T* pop_front() noexcept {
    T* element = front_;
    if (element != nullptr) erase(element);
    return element;
  }

  // Puts `with`, which is in no list, where `element` stands.
  void replace(T* element, T* with) noexcept {
    with->*Next = element->*Next;
    with->*Prev = element->*Prev;
    (with->*Prev != nullptr ? (with->*Prev)->*Next : front_) = with;
    (with->*Next != nullptr ? (with->*Next)->*Prev : back_) = with;
    element->*Next = element->*Prev = nullptr;
  }

  // Forgets all elements without touching them.
  void clear() noexcept { front_ = back_ = nullptr; }

 private:
  T* front_ = nullptr;
  T* back_ = nullptr;
};

}  // namespace tutti
