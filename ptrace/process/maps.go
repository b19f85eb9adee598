package process

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
)

// Perms are the access rights of a mapping.
type Perms uint8

// The rights in the second column of maps.
const (
	Read Perms = 1 << iota
	Write
	Exec
	Shared // else private, copy-on-write
)

// String shows the rights as maps does, for example "r-xp".
func (p Perms) String() string {
	text := []byte("---p")
	if p&Read != 0 {
		text[0] = 'r'
	}
	if p&Write != 0 {
		text[1] = 'w'
	}
	if p&Exec != 0 {
		text[2] = 'x'
	}
	if p&Shared != 0 {
		text[3] = 's'
	}
	return string(text)
}

// Mapping is one line of /proc/PID/maps.
type Mapping struct {
	Start, End   uint64 // addresses, End is exclusive
	Perms        Perms
	Offset       uint64 // where the mapping begins in the file, in bytes
	Major, Minor uint32 // device of the file
	Inode        uint64 // 0: no file
	// Path is the file as maps shows it, without " (deleted)". It is relative to the process's root directory, with a
	// line feed as \012. "[stack]", "[vdso]" and similar names are mappings without a file; "" is anonymous memory.
	Path    string
	Deleted bool // the file was removed or replaced: Path no longer leads to it
}

// Maps reads the mappings of a process in address order, without stopping the process. A zombie and a kernel thread have no
// mappings. If the main thread has exited, Maps reads them through another thread.
func Maps(pid int) ([]Mapping, error) {
	maps, err := readMaps(procPath(pid, "maps"))
	if err != nil || len(maps) > 0 {
		return maps, err
	}
	if tid := LiveThread(pid); tid != pid {
		return TaskMaps(pid, tid)
	}
	return maps, nil
}

// TaskMaps reads the mappings of a process through one of its threads. All threads share them. After the main thread
// has ended, only other threads show them.
func TaskMaps(pid, tid int) ([]Mapping, error) {
	return readMaps(taskPath(pid, tid, "maps"))
}

// errOrder means that the mappings in a maps file overlap or are not in order. From Linux 6.17 on, the kernel does not lock
// all mappings while it writes the file. A mapping that grows meanwhile, such as a heap, can appear in both its old and its
// new form.
var errOrder = fmt.Errorf("%w: not in order", ErrFormat)

// mapsAttempts is how often a maps file is read until its mappings are consistent. About one file in a thousand needs a
// second read.
const mapsAttempts = 10

func readMaps(name string) ([]Mapping, error) {
	return parseAgain(name, func() (string, error) { return readLarge(name) })
}

// parseAgain parses the result of the function read, and calls read again if the mappings are inconsistent.
func parseAgain(name string, read func() (string, error)) (maps []Mapping, err error) {
	for range mapsAttempts {
		var text string
		if text, err = read(); err != nil {
			return nil, err
		}
		if maps, err = parseMaps(text); !errors.Is(err, errOrder) {
			break
		}
	}
	return maps, wrap(name, err)
}

// ParseMaps parses the contents of a maps file (proc_pid_maps(5)). The mappings must be in address order and must not
// overlap, as the kernel writes them.
func ParseMaps(data []byte) ([]Mapping, error) {
	return parseMaps(string(data))
}

func parseMaps(text string) ([]Mapping, error) {
	maps := make([]Mapping, 0, strings.Count(text, "\n")+1)
	last := uint64(0)
	for p := (mapsParser{text: text}); p.at < len(text); {
		begin := p.at
		maps = append(maps, Mapping{})
		m := &maps[len(maps)-1]
		p.mapping(m)
		if p.failed || m.Start < last || m.End <= m.Start {
			line, _, _ := strings.Cut(text[begin:], "\n")
			if !p.failed {
				return nil, fmt.Errorf("%w: mapping %q", errOrder, line)
			}
			return nil, formatError("mapping", line)
		}
		last = m.End
	}
	return maps, nil
}

// mapsParser parses the text of a maps file in one pass, byte by byte, without copying. Servers have hundreds of
// lines, and the first capture of each process waits for them.
type mapsParser struct {
	text   string
	at     int
	failed bool
}

// mapping parses the next line into m.
func (p *mapsParser) mapping(m *Mapping) {
	m.Start = p.hex('-')
	m.End = p.hex(' ')
	m.Perms = p.perms()
	m.Offset = p.hex(' ')
	major, minor := p.hex(':'), p.hex(' ')
	p.failed = p.failed || major > 1<<32-1 || minor > 1<<32-1
	m.Major, m.Minor = uint32(major), uint32(minor)
	m.Inode = p.decimal()
	rest := p.text[p.at:]
	if end := strings.IndexByte(rest, '\n'); end >= 0 {
		rest = rest[:end]
		p.at++
	}
	p.at += len(rest)
	// The name is padded with blanks on its left; nothing follows it. Only files can be deleted.
	m.Path = strings.TrimLeft(rest, " ")
	if path, found := strings.CutSuffix(m.Path, " (deleted)"); found && m.Inode != 0 {
		m.Path, m.Deleted = path, true
	}
}

// perms parses the rights and the blank after them.
func (p *mapsParser) perms() (perms Perms) {
	const flags = "rwxs"
	if len(p.text)-p.at < 5 || p.text[p.at+4] != ' ' {
		p.failed = true
		return 0
	}
	for i := range len(flags) {
		switch p.text[p.at+i] {
		case flags[i]:
			perms |= 1 << i
		case '-', 'p':
		default:
			p.failed = true
		}
	}
	p.at += 5
	return perms
}

// hex parses a hexadecimal number of at most 16 digits and the separator after it.
func (p *mapsParser) hex(separator byte) (value uint64) {
	for i := p.at; i < len(p.text); i++ {
		c := p.text[i]
		switch {
		case c == separator && i > p.at:
			p.at = i + 1
			return value
		case i-p.at >= 16:
			p.failed = true
			return 0
		case '0' <= c && c <= '9':
			value = value<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			value = value<<4 | uint64(c-'a'+10)
		default:
			p.failed = true
			return 0
		}
	}
	p.failed = true
	return 0
}

// decimal parses a decimal number that ends before a blank, a line feed or the end of the text.
func (p *mapsParser) decimal() (value uint64) {
	i := p.at
	for ; i < len(p.text) && p.text[i] != ' ' && p.text[i] != '\n'; i++ {
		digit := uint64(p.text[i] - '0')
		if digit > 9 || value > (math.MaxUint64-digit)/10 {
			p.failed = true
			return 0
		}
		value = value*10 + digit
	}
	p.failed = p.failed || i == p.at
	p.at = i
	return value
}

// IndexOf returns the index of the mapping that contains addr, or -1. The mappings must be sorted by address, as Maps returns
// them.
func IndexOf(maps []Mapping, addr uint64) int {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].End > addr })
	if i == len(maps) || addr < maps[i].Start {
		return -1
	}
	return i
}
