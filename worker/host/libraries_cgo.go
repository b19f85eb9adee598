//go:build cgo

package host

// loadsLibraries means that the C library may load further shared libraries at any time. The process must stay allowed to map their
// code.
const loadsLibraries = true
