package incident

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// headLimit bounds the part of a file that ReadHead reads, in bytes.
const headLimit = 64 << 10

// ReadHead reads only the members of an incident that come first in its file: schema, id, time, program and reason. So a list of
// many incidents costs little. The error wraps ErrNotFound or ErrUnreadable.
func (d *Dir) ReadHead(id string) (*Incident, error) {
	f, path, err := d.open(id)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	i, seen := new(Incident), false
	r := json.NewDecoder(io.LimitReader(f, headLimit))
	if token, err := r.Token(); err != nil || token != json.Delim('{') {
		return nil, fmt.Errorf("%w: %s is not a JSON object", ErrUnreadable, path)
	}
	for !seen && r.More() {
		name, err := r.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
		}
		var into any = new(json.RawMessage)
		switch name {
		case "schema_version":
			into = &i.Schema
		case "id":
			into = &i.ID
		case "time":
			into = &i.Time
		case "program_version":
			into = &i.Program
		case "reason":
			into, seen = &i.Reason, true
		}
		if err := r.Decode(into); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, path, err)
		}
	}
	return i, i.check(id, path)
}

// open opens the JSON file of an incident, and returns the file and its path. It refuses files that are not regular, and files of
// more than readLimit. The error wraps ErrNotFound or ErrUnreadable.
func (d *Dir) open(id string) (*os.File, string, error) {
	if !validID(id) {
		return nil, "", fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	path := filepath.Join(d.Path, id+".json")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: %s in %s", ErrNotFound, id, d.Path)
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, "", fmt.Errorf("%w: %s is a symbolic link", ErrUnreadable, path)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > readLimit {
		f.Close()
		return nil, "", fmt.Errorf("%w: %s is not a regular file of at most %d MB", ErrUnreadable, path, readLimit>>20)
	}
	return f, path, nil
}

// check returns an error that wraps ErrUnreadable if the file at path does not have the incident id in the known format.
func (i *Incident) check(id, path string) error {
	switch {
	case i.Schema != Schema:
		return fmt.Errorf("%w: %s has schema version %d, and this program reads version %d", ErrUnreadable, path, i.Schema, Schema)
	case i.ID != id:
		return fmt.Errorf("%w: %s has the name of another incident", ErrUnreadable, path)
	}
	return nil
}
