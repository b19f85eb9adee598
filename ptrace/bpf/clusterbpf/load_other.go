//go:build !amd64

package clusterbpf

// load refuses: the programs copy the registers of x86_64.
func load(*Server, *Options, int) (objects, error) { return objects{}, ErrUnsupported }
