//go:build cgo

package host

// loadsLibraries means that the C library may load other libraries at any time, and must map their code.
const loadsLibraries = true
