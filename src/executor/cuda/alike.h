// Texts of thread blocks that differ in numbers alone, written once: what a compiler takes long for is the number of
// different statements, and a plan's thread blocks are often copies of a few.
//
// A text has its numbers that may differ by varying() and varying_offset(); all else tells texts apart, but for lines
// of comment: those of the first block stand for all. In the text of several blocks such a number is what it is
// everywhere, or its least plus what `n`, how many blocks lie behind the first, makes of it: a multiple, or an entry of
// a table by `n`.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::executor {

std::string varying(std::uint64_t value);
// Behind a comma; nothing for a number that is 0 everywhere.
std::string varying_offset(std::uint64_t value);

struct Alike {
  std::vector<std::size_t> blocks;               // ascending
  std::string text;                              // may name `n`, and `apart`, a row of the table
  std::vector<std::vector<std::uint64_t>> rows;  // by `n`; empty if `text` names no table
};

// In the order of their first blocks. `texts`: by block. Tables have at most `most_entries` entries together; blocks
// whose table is too large stay apart.
std::vector<Alike> merge_alike(std::span<const std::string> texts, std::size_t most_entries);

}  // namespace tutti::executor
