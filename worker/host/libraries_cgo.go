//go:build cgo

package host

// loadsLibraries means that the C library may load others at any time, which maps code.
const loadsLibraries = true
