package waits

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A preemption is a value of the kernel's parameter preempt=
// (https://docs.kernel.org/admin-guide/kernel-parameters.html). It says when the kernel may take the processor from a
// thread inside a system call.
type preemption string

// The values.
const (
	// preemptNone and preemptVoluntary: only where the kernel's code explicitly allows it.
	preemptNone      preemption = "none"
	preemptVoluntary preemption = "voluntary"
	// preemptLazy: at the end of the system call. Inside the call only after a whole interval of the scheduler's timer.
	// This is much longer than a BPF program runs.
	preemptLazy preemption = "lazy"
	// preemptFull: at once and nearly everywhere, also inside a BPF program. While that program is interrupted, the
	// kernel skips it for the other threads that run on the same processor.
	preemptFull preemption = "full"
	// preemptUnknown: this process cannot read the files that would show it.
	preemptUnknown preemption = ""
)

// preemptFacts has texts of the kernel that say how it preempts threads.
type preemptFacts struct {
	// release and version are those of uname(2).
	release, version string
	// current is /sys/kernel/debug/sched/preempt, which only root can read. Empty: it cannot be read.
	current string
	// commandLine is /proc/cmdline.
	commandLine string
	// config is the configuration of the kernel's build. Empty: it cannot be read.
	config string
}

// readPreemptFacts reads those of the texts that this process may read.
func readPreemptFacts() (f preemptFacts) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.release, f.version = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:])
	}
	f.current = readFirst("/sys/kernel/debug/sched/preempt")
	f.commandLine = readFirst("/proc/cmdline")
	name := "/boot/config-" + f.release
	f.config = readFirst("/proc/config.gz", "/proc/1/root"+name, name, "/lib/modules/"+f.release+"/config")
	return f
}

// readFirst returns the contents of the first file that can be read, decompressed if its name ends in .gz.
func readFirst(names ...string) string {
	for _, name := range names {
		if text, err := readText(name); err == nil {
			return text
		}
	}
	return ""
}

// readText reads a file of at most a few megabytes.
func readText(name string) (string, error) {
	const most = 4 << 20
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	var from io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if from, err = gzip.NewReader(file); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(from, most))
	return string(text), err
}

// preemption finds out how the kernel preempts threads. The version of uname(2) shows how the kernel was built. Without a word
// PREEMPT..., the mode is none or voluntary. PREEMPT means full or lazy. With PREEMPT_DYNAMIC, the mode can be changed at
// boot and later.
func (f *preemptFacts) preemption() preemption {
	build := ""
	for word := range strings.FieldsSeq(f.version) {
		if strings.HasPrefix(word, "PREEMPT") {
			build = word
		}
	}
	switch {
	case f.version == "":
		return preemptUnknown
	case build == "":
		return preemptNone
	case strings.HasPrefix(build, "PREEMPT_RT"):
		return preemptFull
	case build != "PREEMPT_DYNAMIC":
		return f.configured()
	}
	if mode := f.selected(); mode != preemptUnknown {
		return mode
	}
	if mode := f.requested(); mode != preemptUnknown {
		return mode
	}
	return f.configured()
}

// selected returns the mode that the field current shows in parentheses, for example full in "none voluntary (full) lazy".
func (f *preemptFacts) selected() preemption {
	_, rest, _ := strings.Cut(f.current, "(")
	mode, _, _ := strings.Cut(rest, ")")
	return preemption(mode)
}

// requested returns the last valid mode on the kernel's command line. It ignores the words after "--", because the kernel
// only passes them to the first process.
func (f *preemptFacts) requested() (mode preemption) {
	for word := range strings.FieldsSeq(f.commandLine) {
		if word == "--" {
			break
		}
		value, found := strings.CutPrefix(strings.Trim(word, `"`), "preempt=")
		if value := preemption(strings.Trim(value, `"`)); found && f.accepts(value) {
			mode = value
		}
	}
	return mode
}

// accepts reports whether this release of the kernel accepts a mode on its command line on all architectures. The kernel
// ignores modes that it does not have. Linux 6.13 added lazy, and Linux 7.0 removed none and voluntary on architectures
// with lazy.
func (f *preemptFacts) accepts(mode preemption) bool {
	var major, minor int
	if _, err := fmt.Sscanf(f.release, "%d.%d", &major, &minor); err != nil {
		return mode == preemptFull
	}
	switch mode {
	case preemptFull:
		return true
	case preemptLazy:
		return major > 6 || major == 6 && minor >= 13
	case preemptNone, preemptVoluntary:
		return major < 7
	case preemptUnknown:
	}
	return false
}

// configured returns the mode in the configuration of the kernel's build.
func (f *preemptFacts) configured() preemption {
	options := map[string]preemption{
		"CONFIG_PREEMPT_RT=y": preemptFull, "CONFIG_PREEMPT=y": preemptFull, "CONFIG_PREEMPT_LAZY=y": preemptLazy,
		"CONFIG_PREEMPT_VOLUNTARY=y": preemptVoluntary, "CONFIG_PREEMPT_NONE=y": preemptNone,
	}
	for line := range strings.Lines(f.config) {
		if mode, found := options[strings.TrimSpace(line)]; found {
			return mode
		}
	}
	return preemptUnknown
}

// skipsPrograms returns why the kernel would skip BPF programs at trampolines; nil if it would not.
func (p preemption) skipsPrograms() error {
	switch p {
	case preemptNone, preemptVoluntary, preemptLazy:
		return nil
	case preemptFull:
		return impossiblef("the kernel is fully preemptive and would skip programs")
	case preemptUnknown:
	}
	return impossiblef("the kernel may be fully preemptive, and would skip programs then: " +
		"this process cannot read the kernel's preemption mode")
}
