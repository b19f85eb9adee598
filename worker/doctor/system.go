package doctor

import (
	"io"
	"path"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/host/rootfs"
)

// system describes the Linux distribution in a process's root directory.
type system struct {
	root string
	// family has the names of the distribution from os-release: ID, then the words of ID_LIKE. codename is
	// VERSION_CODENAME.
	family   []string
	codename string
}

// maxRelease bounds the part of os-release that is read.
const maxRelease = 64 << 10

// systemAt reads os-release(5) below a root directory. Without this file, family is empty.
func systemAt(root string) system {
	s := system{root: root}
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		data, err := readBelow(root, name, maxRelease)
		if err != nil {
			continue
		}
		values := parseRelease(data)
		s.family = append(strings.Fields(values["ID"]), strings.Fields(values["ID_LIKE"])...)
		if name := values["VERSION_CODENAME"]; packageName.MatchString(name) {
			s.codename = name
		}
		break
	}
	return s
}

// is reports whether the distribution has one of these names, or is derived from a distribution with one of them.
func (s *system) is(names ...string) bool {
	for _, f := range s.family {
		if slices.Contains(names, f) {
			return true
		}
	}
	return false
}

// parseRelease parses NAME=value lines. It supports quotes only around a whole value, which is enough in practice.
func parseRelease(data string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(data) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.Trim(value, `"'`)
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			continue
		}
		values[name] = value
	}
	return values
}

// readBelow reads at most limit bytes of a file below a root directory. Symbolic links cannot lead out of this
// directory.
func readBelow(root, name string, limit int64) (string, error) {
	f, err := rootfs.Open(path.Join(root, "/", name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return string(data), err
}
