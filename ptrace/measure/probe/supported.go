//go:build amd64 || arm64

package probe

const supported = true
