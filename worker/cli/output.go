package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// output is where a result goes: standard output, or a file that is there only if it is complete.
type output struct {
	io.Writer

	file *os.File // nil: standard output
	name string   // of the complete file; "": file is not to be renamed
}

// createOutput opens the output. The empty name is standard output. A regular file is written under another name until
// commit, so that an error leaves no half file, and an old file of that name stays.
func createOutput(name string, stdout io.Writer) (*output, error) {
	if name == "" || name == "-" {
		return &output{Writer: stdout}, nil
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return nil, fmt.Errorf("%s is a directory", name)
		}
		file, err := os.OpenFile(name, os.O_WRONLY, 0) // a device or a pipe
		if err != nil {
			return nil, err
		}
		return &output{Writer: file, file: file}, nil
	}
	const readable = 0o644
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return nil, err
	}
	o := &output{Writer: file, file: file, name: name}
	if err := file.Chmod(readable); err != nil {
		o.discard()
		return nil, err
	}
	return o, nil
}

// commit completes the file.
func (o *output) commit() error {
	if o.file == nil {
		return nil
	}
	file := o.file
	var err error
	if o.name != "" {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil && o.name != "" {
		err = os.Rename(file.Name(), o.name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", o.name, err)
	}
	o.file = nil
	return nil
}

// discard removes a file that was not completed.
func (o *output) discard() {
	if o.file == nil {
		return
	}
	_ = o.file.Close()
	if o.name != "" {
		_ = os.Remove(o.file.Name())
	}
	o.file = nil
}

// checkedWriter keeps the first error of the standard output. The help of a command is written without a check.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.err == nil {
		c.err = err
	}
	return n, err
}
