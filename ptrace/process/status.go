package process

import (
	"strconv"
	"strings"
)

// Status is a part of /proc/PID/status (proc_pid_status(5)).
type Status struct {
	Name      string // as Stat.Comm, with line feeds and backslashes escaped
	State     byte   // as Stat.State
	TGID      int    // the process id; differs from PID if PID is the id of a thread other than the main thread
	PID       int
	PPID      int
	TracerPID int    // process id of the tracer; 0: none, or a tracer outside this PID namespace
	UID, GID  [4]int // real, effective, saved, file system
	Groups    []int  // supplementary groups
	NSPID     []int  // ids in nested PID namespaces, outermost (the reader's) first
	CapEff    uint64 // effective capabilities
	CapPrm    uint64 // permitted capabilities
	Seccomp   int    // 0: off, 1: strict, 2: filter
	SigCgt    uint64 // signals with a handler: bit 0 is signal 1
	SigIgn    uint64 // ignored signals

	// Anonymous is the size of the resident anonymous memory, and Swapped of the memory in swap space, in bytes; 0 for kernel
	// threads.
	Anonymous, Swapped uint64

	// VoluntarySwitches and InvoluntarySwitches count how often the thread, or the process's main thread, left the CPU.
	VoluntarySwitches, InvoluntarySwitches uint64
}

// ReadStatus reads the status file of a process. The id of any thread works as well; TGID is then the process id.
func ReadStatus(pid int) (Status, error) {
	if text, ok := readKept(pid, keptStatus); ok {
		if s, err := ParseStatus(text); err == nil {
			return s, nil
		}
	}
	return readStatus(procPath(pid, "status"))
}

// ReadTaskStatus reads the status file of one thread.
func ReadTaskStatus(pid, tid int) (Status, error) {
	if pid == tid {
		return ReadStatus(pid)
	}
	return readStatus(taskPath(pid, tid, "status"))
}

func readStatus(name string) (Status, error) {
	text, err := readFile(name)
	if err != nil {
		return Status{}, err
	}
	s, err := ParseStatus(text)
	return s, wrap(name, err)
}

// ParseStatus parses the contents of a status file. It skips unknown lines.
func ParseStatus(text string) (Status, error) {
	var s Status
	seen := 0
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		key, value, _ := strings.Cut(line, ":")
		known, ok := s.set(key, strings.TrimLeft(value, "\t "))
		if !ok {
			return Status{}, formatError("status", line)
		}
		if known {
			seen++
		}
		text = rest
	}
	const required = 8 // Name, State, Tgid, Pid, PPid, TracerPid, Uid, Gid: every kernel writes these lines
	if seen < required {
		return Status{}, formatError("status", "too few lines")
	}
	return s, nil
}

// set stores the value of one line. known reports whether every status file has this line; ok is false for an invalid value.
func (s *Status) set(key, value string) (known, ok bool) {
	switch key {
	case "Name":
		s.Name = value
		return true, true
	case "State":
		if value == "" {
			return true, false
		}
		s.State = value[0]
		return true, true
	case "Tgid":
		return true, setInt(&s.TGID, value)
	case "Pid":
		return true, setInt(&s.PID, value)
	case "PPid":
		return true, setInt(&s.PPID, value)
	case "TracerPid":
		return true, setInt(&s.TracerPID, value)
	case "Uid":
		return true, setIDs(&s.UID, value)
	case "Gid":
		return true, setIDs(&s.GID, value)
	}
	return false, s.setOptional(key, value)
}

func (s *Status) setOptional(key, value string) bool {
	var err error
	switch key {
	case "NSpid":
		return s.setNSPID(value)
	case "Groups":
		return s.setGroups(value)
	case "Seccomp":
		return setInt(&s.Seccomp, value)
	case "CapEff":
		s.CapEff, err = strconv.ParseUint(value, 16, 64)
	case "SigCgt":
		s.SigCgt, err = strconv.ParseUint(value, 16, 64)
	case "SigIgn":
		s.SigIgn, err = strconv.ParseUint(value, 16, 64)
	case "CapPrm":
		s.CapPrm, err = strconv.ParseUint(value, 16, 64)
	case "RssAnon":
		s.Anonymous, err = parseKilobytes(value)
	case "VmSwap":
		s.Swapped, err = parseKilobytes(value)
	case "voluntary_ctxt_switches":
		s.VoluntarySwitches, err = strconv.ParseUint(value, 10, 64)
	case "nonvoluntary_ctxt_switches":
		s.InvoluntarySwitches, err = strconv.ParseUint(value, 10, 64)
	}
	return err == nil
}

// parseKilobytes parses a size such as "12 kB", in units of 1,024 bytes.
func parseKilobytes(value string) (bytes uint64, err error) {
	const unit, bits = 1024, 54
	n, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, bits)
	return n * unit, err
}

func (s *Status) setGroups(value string) bool {
	const most = 65536 // NGROUPS_MAX
	fields := strings.Fields(value)
	if len(fields) > most {
		return false
	}
	s.Groups = make([]int, len(fields))
	for i, field := range fields {
		id, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return false
		}
		s.Groups[i] = int(id)
	}
	return true
}

func (s *Status) setNSPID(value string) bool {
	const deepest = 33 // the kernel nests PID namespaces at most 32 deep
	fields := strings.Fields(value)
	if len(fields) > deepest {
		return false
	}
	s.NSPID = make([]int, len(fields))
	for i, field := range fields {
		if !setInt(&s.NSPID[i], field) {
			return false
		}
	}
	return true
}

func setInt(p *int, value string) bool {
	n, err := strconv.ParseUint(value, 10, 31)
	*p = int(n)
	return err == nil
}

func setIDs(ids *[4]int, value string) bool {
	fields := strings.Fields(value)
	if len(fields) != len(ids) {
		return false
	}
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return false
		}
		ids[i] = int(n)
	}
	return true
}
