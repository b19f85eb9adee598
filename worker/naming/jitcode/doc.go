// Package jitcode finds call frame information and names for code that a process has compiled at run time. It uses
// GDB's JIT interface, a search near the code, and perf's map files.
package jitcode
