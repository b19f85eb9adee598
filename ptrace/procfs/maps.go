package procfs

import (
	"strconv"
	"strings"
)

// Perms are the access rights of a mapping.
type Perms uint8

// The rights that the second column of maps shows.
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
	Offset       uint64 // in the file, bytes
	Major, Minor uint32 // device of the file
	Inode        uint64 // 0: no file
	// Path is the file as maps shows it, without " (deleted)": as seen from the process's root directory, a line
	// feed as \012. "[stack]", "[vdso]" and the like name mappings without a file; "" is anonymous memory.
	Path    string
	Deleted bool // the path no longer leads to the mapped file
}

// Maps reads the mappings of a process in address order, without stopping it. A zombie and a kernel thread have none.
func Maps(pid int) ([]Mapping, error) {
	return readMaps(path(pid, "maps"))
}

// TaskMaps reads the mappings of a process by one of its threads: all share them, but once the main thread has ended
// only the others show them.
func TaskMaps(pid, tid int) ([]Mapping, error) {
	return readMaps(taskPath(pid, tid, "maps"))
}

func readMaps(name string) ([]Mapping, error) {
	text, err := readFile(name)
	if err != nil {
		return nil, err
	}
	maps, err := parseMaps(text)
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
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		m, ok := parseMapping(line)
		if !ok || m.Start < last || m.End <= m.Start {
			return nil, formatError("mapping", line)
		}
		last = m.End
		maps = append(maps, m)
		text = rest
	}
	return maps, nil
}

func parseMapping(line string) (m Mapping, ok bool) {
	start, line, ok1 := hexField(line, '-')
	end, line, ok2 := hexField(line, ' ')
	perms, line, ok3 := parsePerms(line)
	offset, line, ok4 := hexField(line, ' ')
	major, line, ok5 := hexField(line, ':')
	minor, line, ok6 := hexField(line, ' ')
	inode, name, _ := strings.Cut(line, " ")
	number, err := strconv.ParseUint(inode, 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || err != nil || major > 1<<32-1 || minor > 1<<32-1 {
		return Mapping{}, false
	}
	m = Mapping{Start: start, End: end, Perms: perms, Offset: offset,
		Major: uint32(major), Minor: uint32(minor), Inode: number}
	// The name is padded with blanks on its left; nothing follows it. Only files can be deleted.
	m.Path = strings.TrimLeft(name, " ")
	if path, found := strings.CutSuffix(m.Path, " (deleted)"); found && number != 0 {
		m.Path, m.Deleted = path, true
	}
	return m, true
}

func parsePerms(line string) (p Perms, rest string, ok bool) {
	const flags = "rwxs"
	if len(line) < 5 || line[4] != ' ' {
		return 0, "", false
	}
	for i := range flags {
		switch line[i] {
		case flags[i]:
			p |= 1 << i
		case '-', 'p':
		default:
			return 0, "", false
		}
	}
	return p, line[5:], true
}

// hexField takes a hexadecimal number that ends at the separator; written out because strconv is most of the cost of
// a long maps file otherwise.
func hexField(line string, separator byte) (value uint64, rest string, ok bool) {
	for i := range len(line) {
		c := line[i]
		switch {
		case c == separator:
			return value, line[i+1:], i > 0
		case i >= 16:
			return 0, "", false
		case '0' <= c && c <= '9':
			value = value<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			value = value<<4 | uint64(c-'a'+10)
		default:
			return 0, "", false
		}
	}
	return 0, "", false
}
