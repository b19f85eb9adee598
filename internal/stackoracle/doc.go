// Package stackoracle holds no code, only tests: for stopped processes of many kinds the program's stacks must equal
// those of gdb and of eu-stack, program counter by program counter, in every thread. Every difference has to be listed,
// with the reason and with who is right; see differences_test.go.
//
// It knows nothing of the unwinder: it builds the program, runs `capture --format json` and reads what that prints.
//
// Environment, besides what package pgtest reads:
//
//	STACKORACLE_PROGRAM  the program to test instead of one built from this source (absolute path)
//	STACKORACLE_RANDOM   how often each busy process is stopped at an arbitrary moment; default 10
package stackoracle
