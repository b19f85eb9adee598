//go:build amd64 || arm64

package probebpf

const supported = true
