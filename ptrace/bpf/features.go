package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// typesFile has the types of the running kernel (BTF), to which the loader adapts the BPF programs.
const typesFile = "/sys/kernel/btf/vmlinux"

// MissingTypes returns an error if typesFile is missing. No BPF program can be loaded then.
func MissingTypes() error {
	if _, err := os.Stat(typesFile); err != nil {
		return fmt.Errorf("the kernel, Linux %s, has no type information: %s is missing (CONFIG_DEBUG_INFO_BTF)",
			Release(), typesFile)
	}
	return nil
}

// HostPIDs returns an error if this process is not in the host's PID namespace. BPF programs see the host's process
// ids.
func HostPIDs() error {
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO, linux/proc_ns.h
	if space, err := os.Readlink("/proc/self/ns/pid"); err != nil || space != initial {
		return errors.New("this process is not in the host's PID namespace")
	}
	return nil
}

// Trampolines returns an error if the kernel cannot call BPF programs at the entry of a kernel function, such as a
// system call.
func Trampolines(function string) error {
	err := tryProgram(ebpf.AttachTraceFEntry, function)
	if errors.Is(err, fs.ErrPermission) && tryProgram(ebpf.AttachTraceRawTp, "sys_enter") == nil {
		return errors.New("the kernel refuses programs at trampolines")
	}
	return err
}

// tryProgram loads a BPF program that does nothing, and removes it. The program is loaded for the given place in the kernel.
func tryProgram(place ebpf.AttachType, name string) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "try", Type: ebpf.Tracing, AttachType: place, AttachTo: name,
		License: "Dual MIT/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("a program at %s: %w", name, err)
	}
	return program.Close()
}

// LoadError returns an error that says that the kernel did not do what the parameter what names, such as "load a
// program". If the kernel does not support this, the result wraps unsupported. It names the running release and
// firstRelease, the first release with this feature, or the lack of type information. A missing privilege is
// unix.EPERM, an fs.ErrPermission.
func LoadError(unsupported error, what, firstRelease string, err error) error {
	noTypes := MissingTypes()
	switch {
	case errors.Is(err, ebpf.ErrNotSupported) && noTypes != nil:
		return fmt.Errorf("%w: %w", unsupported, noTypes)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("the kernel refuses to %s: CAP_BPF and CAP_PERFMON are missing, or a security module "+
			"forbids it: %w", what, unix.EPERM)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.ENOSYS), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: the kernel, Linux %s, refuses to %s, which takes Linux %s or later: %w", unsupported,
			Release(), what, firstRelease, err)
	}
	return fmt.Errorf("%s in the kernel: %w", what, err)
}

// Release returns the release of the running kernel.
func Release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of an unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}
