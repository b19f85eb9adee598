package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
)

func platform() finding {
	var u unix.Utsname
	release := "unknown"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	text := fmt.Sprintf("Linux %s on %s", release, runtime.GOARCH)
	if arch.Host() == nil {
		return finding{
			bad, "platform", text + ", for which there is no unwinder",
			"Run the worker on a supported architecture.",
		}
	}
	return finding{good, "platform", text, ""}
}

// yama checks kernel.yama.ptrace_scope: see Documentation/admin-guide/LSM/Yama.rst of the kernel.
func yama() finding {
	data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if errors.Is(err, fs.ErrNotExist) {
		return finding{good, "yama", "not in this kernel", ""}
	}
	if err != nil {
		return finding{warn, "yama", err.Error(), ""}
	}
	scope := strings.TrimSpace(string(data))
	text := "kernel.yama.ptrace_scope is " + scope
	switch {
	case scope == "0":
		return finding{good, "yama", text, ""}
	case scope == "3":
		return finding{bad, "yama", text + ": nobody may trace until the next boot", "Set it to at most 2 and reboot."}
	case hasTrace():
		return finding{good, "yama", text + ", and this process has CAP_SYS_PTRACE", ""}
	}
	return finding{
		bad, "yama", text + ", and this process lacks CAP_SYS_PTRACE",
		"Give the worker CAP_SYS_PTRACE (the systemd unit does), or set kernel.yama.ptrace_scope to 0.",
	}
}

func hasTrace() bool {
	st, err := process.ReadStatus(os.Getpid())
	return err == nil && has(st, unix.CAP_SYS_PTRACE)
}

func capability() finding {
	text := fmt.Sprintf("this process runs as user id %d", os.Geteuid())
	if hasTrace() {
		return finding{good, "privilege", text + " with CAP_SYS_PTRACE", ""}
	}
	return finding{good, "privilege", text + " without CAP_SYS_PTRACE: it may trace processes of that user", ""}
}
