package repository

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// meta has the keys of the specification that are used here; another key is an error.
type meta struct {
	Name        string                               `json:"name"`
	Abstract    string                               `json:"abstract"`
	Description string                               `json:"description"`
	Version     string                               `json:"version"`
	Maintainer  string                               `json:"maintainer"`
	License     string                               `json:"license"`
	Provides    map[string]provided                  `json:"provides"`
	Prereqs     map[string]map[string]map[string]any `json:"prereqs"`
	GeneratedBy string                               `json:"generated_by"`
	Tags        []string                             `json:"tags"`
	Spec        struct {
		Version string `json:"version"`
		URL     string `json:"url"`
	} `json:"meta-spec"`
}

type provided struct {
	Abstract string `json:"abstract"`
	File     string `json:"file"`
	Docfile  string `json:"docfile"`
	Version  string `json:"version"`
}

// semantic is a version of the form that PGXN accepts.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

func TestMeta(t *testing.T) {
	var m meta
	decoder := json.NewDecoder(bytes.NewReader(readPGXN(t, "META.json")))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"name": m.Name, "abstract": m.Abstract, "maintainer": m.Maintainer, "license": m.License, "version": m.Version,
	} {
		if value == "" {
			t.Errorf("META.json lacks %s", key)
		}
	}
	if m.Spec.Version != "1.0.0" {
		t.Errorf("meta-spec is %q", m.Spec.Version)
	}
	if m.License != "postgresql" {
		t.Errorf("license %q is none of the specification's names", m.License)
	}
	if len(m.Name) < 2 || strings.ContainsAny(m.Name, " \t\n/\\") {
		t.Errorf("name %q is no term of the specification", m.Name)
	}
	for _, tag := range m.Tags {
		if len(tag) > 255 || strings.ContainsAny(tag, "/\\") {
			t.Errorf("tag %q is no tag of the specification", tag)
		}
	}
	for phase, relations := range m.Prereqs {
		if !slices.Contains([]string{"configure", "build", "test", "runtime", "develop"}, phase) {
			t.Errorf("prereqs: no phase %q in the specification", phase)
		}
		for relation := range relations {
			if !slices.Contains([]string{"requires", "recommends", "suggests", "conflicts"}, relation) {
				t.Errorf("prereqs: no relation %q in the specification", relation)
			}
		}
	}
	if len(m.Provides) == 0 {
		t.Error("META.json provides nothing")
	}
	for name, p := range m.Provides {
		if !semantic.MatchString(p.Version) {
			t.Errorf("%s: version %q", name, p.Version)
		}
		for _, file := range []string{p.File, p.Docfile} {
			if _, err := os.Stat(filepath.Join(top, file)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestVersions compares the versions in META.json, the Makefile and the control file.
func TestVersions(t *testing.T) {
	var m meta
	if err := json.Unmarshal(readPGXN(t, "META.json"), &m); err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile(`(?m)^VERSION *:= *(\S+)$`).FindSubmatch(readPGXN(t, "Makefile"))
	extension := regexp.MustCompile(`(?m)^default_version = '(.*)'$`).FindSubmatch(readPGXN(t, "pg_stat_backtrace.control"))
	if program == nil || extension == nil {
		t.Fatal("no version in the Makefile or in the control file")
	}
	if m.Version != string(program[1]) {
		t.Errorf("META.json has version %s, the Makefile %s", m.Version, program[1])
	}
	p := m.Provides["pg_stat_backtrace"]
	if p.Version != string(extension[1])+".0" || p.File != "sql/pg_stat_backtrace--"+string(extension[1])+".sql" {
		t.Errorf("META.json provides version %s in %s, the control file has %s", p.Version, p.File, extension[1])
	}
}

// TestDist makes PGXN's archive twice, and looks for the files that an installation needs.
func TestDist(t *testing.T) {
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		t.Skip("no checkout of git: the archive is made of the files that git knows")
	}
	var archives [2][]byte
	for i := range archives {
		dir := t.TempDir()
		command := exec.CommandContext(t.Context(), "scripts/dist.sh", dir)
		command.Dir = top
		command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1790000000")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		paths, err := filepath.Glob(filepath.Join(dir, "pg_stat_backtrace-*.zip"))
		if err != nil || len(paths) != 1 {
			t.Fatal("no archive", paths, err)
		}
		data, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = data
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}
}

func readPGXN(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
