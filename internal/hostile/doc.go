// Package hostile runs the program on hostile files, and measures its memory and its output. All commands that read
// files of unknown origin are here. The files are made by the tests, or are in testdata. It holds tests only.
package hostile
