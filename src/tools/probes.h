// What this machine can do, found by doing it: the checks behind `tutti doctor`.
//
// Each probe makes a real transfer, most between two child processes, and, but for try_cuda_group(), never throws for
// what it finds: a refusal is an answer. Children are ended and waited for before a probe returns; every wait is
// bounded. Ownership: values. Thread rule: call from a process with one thread (the probes fork).
#pragma once

#include <string>
#include <vector>

namespace tutti {

struct Probe {
  static Probe refused(int error_number);

  bool works = false;
  std::string detail;  // what was seen: "Operation not permitted", "THP for memfd: never"
  double value = 0;    // what was measured, in `unit`
  std::string unit;    // "GB/s", "us", "bytes", ...; empty when nothing was measured
};

// A memfd is passed over a Unix socket; the child maps it and writes, the parent reads.
Probe probe_memfd();

// A child reads the private memory of another by the kernel (process_vm_readv), as ranks do where that pays.
Probe probe_cross_memory();

// Two processes wake each other in turn through a futex word of a shared memfd; median round trip.
Probe probe_futex();

// The asymmetric barrier that lets a publisher skip a fence.
Probe probe_membarrier();

// A child is killed; how long until its pidfd tells.
Probe probe_pidfd();

// Locks one page; the value is the limit in bytes (-1: none).
Probe probe_memory_lock();

// Asks for a huge page of anonymous memory and looks whether one came.
Probe probe_huge_pages();

// The same for memfd memory, which the mapped tensors are made of.
Probe probe_shared_huge_pages();

// The arena of mapped tensors can be made; the value is its address space.
Probe probe_arena();

// Descriptors this process may open.
Probe probe_descriptors();

struct InterfaceProbe {
  std::string name;
  std::string address;
  bool loopback = false;
  Probe transfer;  // 16 MB over TCP from the address to itself
};

// Every interface that is up and has an IPv4 or global IPv6 address.
std::vector<InterfaceProbe> probe_interfaces();

// Makes a group of a rank a device (of two on one device, if there is one only), as threads, probes included, and tells
// how its ranks reach each other: CudaCommunicator::transport(). Throws Error if no such group can be made.
std::string try_cuda_group();

}  // namespace tutti
