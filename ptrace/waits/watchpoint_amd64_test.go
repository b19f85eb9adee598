package waits

import "testing"

// TestStored decodes stores as gcc and clang make them, and refuses everything else.
func TestStored(t *testing.T) {
	var registers [17]uint64
	for i := range registers {
		registers[i] = uint64(100 + i)
	}
	for _, c := range []struct {
		text  string
		code  []byte
		value uint32
		ok    bool
	}{
		{"movl $0x1000005, (%rax)", []byte{0x90, 0x90, 0xc7, 0x00, 5, 0, 0, 1}, 0x1000005, true},
		{"movl $0, (%rbx)", []byte{0x90, 0x90, 0xc7, 0x03, 0, 0, 0, 0}, 0, true},
		{"movl $7, (%r12 needs SIB)", []byte{0x90, 0x90, 0xc7, 0x04, 7, 0, 0, 0}, 0, false},
		{"mov %edx, (%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x10}, 103, true},
		{"mov %esi, (%rdx)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x32}, 104, true},
		{"mov %r12d, (%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x44, 0x89, 0x20}, 113, true},
		{"mov %ebx, (%r14)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x41, 0x89, 0x1e}, 101, true},
		{"mov %edx, 4(%rax)", []byte{0x90, 0x90, 0x90, 0x90, 0x90, 0x89, 0x50, 0x04}, 0, false},
		{"nothing", nil, 0, false},
	} {
		if value, ok := stored(c.code, &registers); value != c.value || ok != c.ok {
			t.Errorf("%s: %#x, %v", c.text, value, ok)
		}
	}
}
