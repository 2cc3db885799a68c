#include "channel/berths.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "base/registry.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMostSpare = 16;  // of each

UniqueFd make_event() noexcept { return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

std::unique_ptr<Bell> make_bell(bool& none) {
  auto bell = Bell::create();
  if (bell == nullptr && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    throw_system_error(ErrorKind::kExhausted, "socket", errno);
  }
  none = bell == nullptr;
  return bell;
}

}  // namespace

Berths& Berths::instance() {
  constexpr auto make = []() -> void* { return new Berths; };
  return *static_cast<Berths*>(ProcessRegistry::instance().member(RegistryMember::kBerths, make));
}

void Berths::reserve(bool with_bell) {
  const std::lock_guard lock(mutex_);
  events_.reserve(kMostSpare);
  bells_.reserve(kMostSpare);
  if (events_.empty()) {
    events_.push_back(make_event());
    if (!events_.back()) {
      events_.pop_back();
      throw_system_error(ErrorKind::kExhausted, "eventfd", errno);
    }
  }
  if (with_bell && !no_bells_ && ringer_ == nullptr) ringer_ = make_bell(no_bells_);
  if (with_bell && !no_bells_ && bells_.empty()) {
    if (auto bell = make_bell(no_bells_)) bells_.push_back(std::move(bell));
  }
}

UniqueFd Berths::take_event() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      UniqueFd event = std::move(events_.back());
      events_.pop_back();
      return event;
    }
  }
  return make_event();
}

std::unique_ptr<Bell> Berths::take_bell() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (no_bells_) return nullptr;
    if (!bells_.empty()) {
      auto bell = std::move(bells_.back());
      bells_.pop_back();
      return bell;
    }
  }
  return Bell::create();
}

void Berths::give_back(UniqueFd event, std::unique_ptr<Bell> bell) noexcept {
  eventfd_t nudges = 0;
  if (event) ::eventfd_read(event.get(), &nudges);
  if (bell != nullptr) bell->silence();
  const std::lock_guard lock(mutex_);
  if (event && events_.size() < kMostSpare) events_.push_back(std::move(event));
  if (bell != nullptr && bells_.size() < kMostSpare) bells_.push_back(std::move(bell));
}

const Bell* Berths::ringer() const noexcept {
  const std::lock_guard lock(mutex_);
  return ringer_.get();
}

}  // namespace tutti
