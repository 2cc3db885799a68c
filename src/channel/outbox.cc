#include "channel/outbox.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

namespace tutti {
namespace {

// A cancelled send that holds its place among the starts is an op of ours without a peer.
bool is_blank(const MessageOp& op) noexcept { return op.peer < 0; }

}  // namespace

void Outbox::send(MessageOp& op) {
  op.phase = MessagePhase::kStart;
  op.id = next_id_++;
  starts_.push_back(&op);
}

void Outbox::control(FrameKind kind, std::uint64_t id) {
  Control c;
  c.header.kind = kind;
  c.header.id = id;
  control_.push_back(c);
}

void Outbox::refuse(std::uint64_t id, const CallRecord& ours, const CallRecord& theirs) {
  Control c;
  c.header.kind = FrameKind::kRefuse;
  c.header.id = id;
  c.header.bytes = sizeof(CallRecord);
  c.header.record = ours;
  c.echo = theirs;
  control_.push_back(c);
}

// The first frame of an op of a caller's.
bool Outbox::writes_start_of(std::uint64_t id) const noexcept {
  return op_ != nullptr && op_->id == id && (header_.kind == FrameKind::kEager || header_.kind == FrameKind::kAnnounce);
}

bool Outbox::grant(std::uint64_t id) noexcept {
  if (writes_start_of(id) && header_.kind == FrameKind::kAnnounce) {
    op_->phase = MessagePhase::kGranted;  // end_frame() puts it where it belongs
    return true;
  }
  for (MessageOp* op = announced_.front(); op != nullptr; op = op->next) {
    if (op->id != id) continue;
    announced_.erase(op);
    op->phase = MessagePhase::kGranted;
    granted_.push_back(op);
    return true;
  }
  return false;
}

MessageOp* Outbox::find(std::uint64_t id) const noexcept {
  if (writes_start_of(id)) return op_;
  for (const OpQueue* queue : {&announced_, &granted_})
    for (MessageOp* op = queue->front(); op != nullptr; op = op->next)
      if (op->id == id) return op;
  return nullptr;
}

bool Outbox::acknowledge(std::uint64_t credit) noexcept {
  if (credit - eager_taken_ > eager_sent_ - eager_taken_) return false;
  eager_taken_ = credit;
  return true;
}

// The frame has been begun and must be finished, but not from memory that is no longer ours to read.
void Outbox::own_rest_of_body() {
  owned_.assign(body_, body_ + body_left_);
  body_ = owned_.data();
  op_ = nullptr;
}

void Outbox::retract(MessageOp& op, bool tell) {
  switch (op.phase) {
    case MessagePhase::kStart: {
      auto blank = std::make_unique<MessageOp>();
      blank->id = op.id;
      blank->tag = op.tag;
      blank->record = op.record;
      starts_.replace(&op, blank.release());
      break;
    }
    case MessagePhase::kWriting:
      if (header_.kind == FrameKind::kAnnounce && tell) control(FrameKind::kWithdraw, op.id);
      own_rest_of_body();
      break;
    case MessagePhase::kAnnounced:
      announced_.erase(&op);
      if (tell) control(FrameKind::kWithdraw, op.id);
      break;
    case MessagePhase::kGranted:
      if (!writes_start_of(op.id)) granted_.erase(&op);
      if (op_ == &op) own_rest_of_body();
      if (tell) control(FrameKind::kWithdraw, op.id);
      break;
    default:
      break;
  }
}

void Outbox::clear() noexcept {
  while (MessageOp* op = starts_.pop_front())
    if (is_blank(*op)) delete op;
  if (op_ != nullptr && is_blank(*op_)) delete op_;
  announced_.clear();
  granted_.clear();
  control_.clear();
  op_ = nullptr;
  writing_ = false;
}

void Outbox::begin_start(MessageOp& op) noexcept {
  op.phase = MessagePhase::kWriting;
  const std::uint64_t cost = eager_cost(op.bytes);
  header_.id = op.id;
  header_.tag = op.tag;
  header_.bytes = op.bytes;
  header_.record = op.record;
  if (is_blank(op)) {
    header_.kind = FrameKind::kBlank;
  } else if (op.bytes <= kEagerBytes && eager_sent_ - eager_taken_ + cost <= kEagerWindow) {
    header_.kind = FrameKind::kEager;
    eager_sent_ += cost;
    body_ = op.data;
    body_left_ = op.bytes;
  } else {
    header_.kind = FrameKind::kAnnounce;
  }
}

bool Outbox::begin_frame(std::uint64_t credit) noexcept {
  body_left_ = 0;
  op_ = nullptr;
  if (!control_.empty()) {
    header_ = control_.front().header;
    if (header_.bytes != 0) {
      echo_ = control_.front().echo;
      body_ = reinterpret_cast<const std::byte*>(&echo_);
      body_left_ = sizeof echo_;
    }
    control_.pop_front();
  } else if (MessageOp* start = starts_.pop_front()) {
    op_ = start;
    begin_start(*start);
  } else if (MessageOp* op = granted_.front()) {
    op_ = op;
    header_.kind = FrameKind::kData;
    header_.id = op->id;
    header_.tag = op->tag;
    header_.bytes = std::min(kFragmentBytes, op->bytes - op->moved);
    body_ = op->data + op->moved;
    body_left_ = header_.bytes;
  } else {
    return false;
  }
  header_.credit = credit;
  header_sent_ = 0;
  writing_ = true;
  return true;
}

void Outbox::end_frame(OpQueue& finished) noexcept {
  writing_ = false;
  MessageOp* op = std::exchange(op_, nullptr);
  if (op == nullptr) return;
  switch (header_.kind) {
    case FrameKind::kEager:
      finished.push_back(op);
      break;
    case FrameKind::kAnnounce:
      if (op->phase == MessagePhase::kGranted) {
        granted_.push_back(op);
      } else {
        op->phase = MessagePhase::kAnnounced;
        announced_.push_back(op);
      }
      break;
    case FrameKind::kData:
      op->moved += header_.bytes;
      if (op->moved == op->bytes) {
        granted_.erase(op);
        finished.push_back(op);
      }
      break;
    default:
      delete op;  // a blank
      break;
  }
}

bool Outbox::pump(Link& link, std::uint64_t credit, std::size_t budget, OpQueue& finished) noexcept {
  std::size_t written = 0;
  while (written < budget && (writing_ || begin_frame(credit))) {
    const ConstBytes head(reinterpret_cast<const std::byte*>(&header_) + header_sent_, sizeof header_ - header_sent_);
    const std::size_t n = link.write_some(head, ConstBytes(body_, body_left_));
    if (n == 0) break;
    written += n;
    const std::size_t of_head = std::min(n, head.size());
    header_sent_ += of_head;
    body_ += n - of_head;
    body_left_ -= n - of_head;
    if (header_sent_ == sizeof header_ && body_left_ == 0) end_frame(finished);
  }
  return written != 0;
}

}  // namespace tutti
