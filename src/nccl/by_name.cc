// libnccl.so.2 without a function of its own: what opens it by that name finds those of libtutti_nccl.so, which it
// needs.
