// Command ziptree makes a zip archive of the files whose names it reads, one a line:
//
//	git ls-files | ziptree -prefix name-1.0 -epoch 1790000000 name-1.0.zip
//
// Order, times and modes of the entries depend on nothing else, so the same files make the same bytes.
package main

import (
	"archive/zip"
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"
)

func main() {
	prefix := flag.String("prefix", "", "the folder in the archive")
	epoch := flag.Int64("epoch", 0, "the time of each file, seconds since 1970")
	flag.Parse()
	if flag.NArg() != 1 || *prefix == "" {
		fmt.Fprintln(os.Stderr, "usage: ziptree -prefix FOLDER -epoch SECONDS FILE.zip <NAMES")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *prefix, time.Unix(*epoch, 0).UTC(), os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "ziptree:", err)
		os.Exit(1)
	}
}

func run(target, prefix string, when time.Time, list io.Reader) error {
	var names []string
	scanner := bufio.NewScanner(list)
	for scanner.Scan() {
		names = append(names, scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading the list: %w", err)
	}
	slices.Sort(names)
	file, err := os.Create(target)
	if err != nil {
		return err
	}
	archive := zip.NewWriter(file)
	for _, name := range names {
		if err := add(archive, name, prefix, when); err != nil {
			return errors.Join(err, file.Close(), os.Remove(target))
		}
	}
	return errors.Join(archive.Close(), file.Close())
}

// add copies a regular file into the archive. A deleted file that git still lists is left out.
func add(archive *zip.Writer, name, prefix string, when time.Time) error {
	info, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", name)
	}
	source, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	header := &zip.FileHeader{Name: path.Join(prefix, name), Method: zip.Deflate, Modified: when}
	mode := os.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	header.SetMode(mode)
	w, err := archive.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, source)
	return err
}
