// Package jitcode finds call frame information and names for code that a process has made at run time: by GDB's JIT
// interface, by a search near the code, and by perf's map files.
package jitcode
