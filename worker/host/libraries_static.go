//go:build !cgo

package host

// loadsLibraries means that a C library may load other libraries at any time, and must map their code. This program has
// no C library.
const loadsLibraries = false
