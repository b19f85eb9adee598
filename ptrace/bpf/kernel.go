package bpf

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of bpf(2) (linux/bpf.h).
const (
	commandMap  = 0
	commandLoad = 5
	commandRun  = 10

	mapArray    = 2
	mapMappable = 1 << 10
)

// mapAttributes is what BPF_MAP_CREATE takes of union bpf_attr, loadAttributes what BPF_PROG_LOAD does, and
// runAttributes BPF_PROG_TEST_RUN.
type mapAttributes struct {
	kind, key, value, entries, flags uint32
	_                                [2]uint32
	name                             [16]byte
	_, types, keyType, valueType     uint32
}

type loadAttributes struct {
	kind, count           uint32
	instructions, license uint64
	logLevel, logSize     uint32
	log                   uint64
	_, flags              uint32
	name                  [16]byte
	_                     [2]uint32
	types, functionSize   uint32
	functions             uint64
	functionCount, _      uint32
}

type runAttributes struct {
	program, result uint32
	_               [9]uint64
}

// name is what the kernel calls tables and programs.
//
//nolint:gochecknoglobals // a constant
var name = [16]byte{'p', 'g', 's', 'b', '_', 's', 'a', 'm', 'p', 'l', 'e'}

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	return int(fd), errno
}

// newMap makes a map; the result is its descriptor.
func newMap(attributes mapAttributes) (int, error) {
	attributes.name = name
	fd, errno := bpf(commandMap, unsafe.Pointer(&attributes), unsafe.Sizeof(attributes))
	if errno != 0 {
		return -1, loadError("make a table", errno)
	}
	return fd, nil
}

// newTable makes a table of one value, and maps it. The descriptor is -1 or to be closed even after an error.
func newTable(size int) (table int, memory []byte, err error) {
	table, err = newMap(mapAttributes{kind: mapArray, key: 4, value: uint32(size), entries: 1, flags: mapMappable})
	if err != nil {
		return -1, nil, err
	}
	memory, err = unix.Mmap(table, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return table, nil, fmt.Errorf("map a table of the kernel's: %w", err)
	}
	return table, memory, nil
}

// loadProgram has the kernel verify and compile a program, which is to be called like a system call. One of more than
// one function has them described.
func loadProgram(words []uint64, types int, functions []functionInfo) (int, error) {
	const (
		typeSyscall   = 31
		flagSleepable = 1 << 4
	)
	license := []byte("Dual MIT/GPL\x00")
	load := loadAttributes{
		kind: typeSyscall, count: uint32(len(words)), instructions: uint64(uintptr(unsafe.Pointer(&words[0]))),
		license: uint64(uintptr(unsafe.Pointer(&license[0]))), flags: flagSleepable, name: name, types: uint32(types),
		functionSize: uint32(unsafe.Sizeof(functionInfo{})), functionCount: uint32(len(functions)),
		functions: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(functions)))),
	}
	// A signal, such as the runtime's, ends the verification.
	fd, errno := bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
	for errno == unix.EAGAIN {
		fd, errno = bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
	}
	if errno != 0 {
		log := make([]byte, 1<<20)
		load.logLevel, load.logSize, load.log = 1, uint32(len(log)), uint64(uintptr(unsafe.Pointer(&log[0])))
		_, _ = bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
		log, _, _ = bytes.Cut(log, []byte{0})
		return -1, fmt.Errorf("%w%s", loadError("load a program", errno), reasonIn(log))
	}
	runtime.KeepAlive(words)
	runtime.KeepAlive(functions)
	runtime.KeepAlive(license)
	return fd, nil
}

// loadError words a refusal.
func loadError(what string, errno unix.Errno) error {
	switch errno {
	case unix.EPERM:
		return fmt.Errorf("the kernel refuses to %s: CAP_BPF and CAP_PERFMON are missing, or a security module "+
			"forbids it: %w", what, errno)
	case unix.ENOSYS, unix.EINVAL, unix.EACCES:
		return fmt.Errorf("%w: the kernel, Linux %s, refuses to %s, which takes Linux 6.10 or later: %w", ErrUnsupported,
			release(), what, errno)
	}
	return fmt.Errorf("%s in the kernel: %w", what, errno)
}

// release is that of the running kernel.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of an unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// reasonIn is what the kernel's verifier said last before its statistics.
func reasonIn(log []byte) string {
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	if len(lines) < 2 {
		return ""
	}
	return fmt.Sprintf(" (%s)", lines[len(lines)-2])
}
