package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// systemServiceDir is the directory of the system-wide service file in Debian's and PGDG's builds of libpq.
const systemServiceDir = "/etc/postgresql-common"

// serviceFiles lists the files that may define a service, in the order in which libpq reads them.
func serviceFiles(s settings) []string {
	first := s["servicefile"]
	if first == "" {
		first = filepath.Join(homeDir(), ".pg_service.conf")
	}
	dir := os.Getenv("PGSYSCONFDIR")
	if dir == "" {
		dir = systemServiceDir
	}
	return []string{first, filepath.Join(dir, "pg_service.conf")}
}

func homeDir() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return "/nonexistent"
	}
	return home
}

// readService returns the settings of a service, and the file that defines it.
func readService(s settings, name string) (found settings, file string, err error) {
	for _, file := range serviceFiles(s) {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", connError("service file: %w", err)
		}
		found, err := parseService(string(data), name, file)
		if err != nil || found != nil {
			return found, file, err
		}
	}
	return nil, "", connError("definition of service %q not found", name)
}

// parseService returns the settings of a service in the text of a service file, or nil if it is not defined there.
func parseService(text, name, file string) (settings, error) {
	var found settings
	inside := false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		switch {
		case line == "", line[0] == '#':
		case line[0] == '[':
			if found != nil {
				return found, nil
			}
			if inside = line == "["+name+"]"; inside {
				found = settings{}
			}
		case inside:
			key, value, ok := strings.Cut(line, "=")
			if !ok || key == "service" || key == "servicefile" {
				return nil, connError("syntax error in service file %q, line %d", file, number)
			}
			if _, given := found[key]; given {
				continue // as in libpq, the first value is used
			}
			if err := found.set(key, value, "service file "+file); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}
