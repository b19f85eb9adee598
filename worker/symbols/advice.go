package symbols

import (
	"fmt"
	"slices"
	"strings"
)

// Advice says what to do to get the names and lines that are missing, in lines to print; none if nothing is missing.
// configured says whether a debuginfod server is.
func Advice(images []Image, configured bool) []string {
	var packages, unknown, replaced []string
	var s *system
	byBuildID := false
	for i := range images {
		m := &images[i]
		if m.Complete() || m.virtual() {
			continue
		}
		byBuildID = byBuildID || m.BuildID != "" && (m.Package != "" || m.Deleted)
		if s == nil {
			at := systemAt(m.root)
			s = &at
		}
		switch {
		case m.Deleted:
			replaced = append(replaced, m.Name)
		case m.DebugPackage != "":
			packages = append(packages, m.DebugPackage)
		default:
			unknown = append(unknown, m.Name)
		}
	}
	var lines []string
	if len(packages) > 0 {
		program := packages[0] // the images' order has the program first: what is needed most
		packages = slices.DeleteFunc(uniq(packages), func(p string) bool { return p == program })
		lines = append(lines, s.install(append([]string{program}, packages...))...)
	}
	if byBuildID {
		lines = append(lines, s.debuginfod(configured)...)
	}
	if len(unknown) > 0 {
		lines = append(lines, wrap("of no package: "+strings.Join(uniq(unknown), ", ")+". Only who built that has the "+
			"rest: build with -g, or put its debug files at /usr/lib/debug/.build-id/XX/YYYY.debug (XX and YYYY are "+
			"the build-id)")...)
	}
	if len(replaced) > 0 {
		lines = append(lines, wrap("replaced or removed since the process began: "+strings.Join(uniq(replaced), ", ")+
			". Debug packages of what is installed now do not fit; debuginfod may have the right ones, or restart the "+
			"process")...)
	}
	return lines
}

func uniq(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// install says how to install debug packages.
func (s *system) install(packages []string) []string {
	switch {
	case s.is("rhel", "fedora", "centos"):
		names := make([]string, len(packages)) // the command takes the names of the packages that are debugged
		for i, p := range packages {
			names[i] = strings.TrimSuffix(p, debuginfoSuffix)
		}
		lines := command("dnf debuginfo-install", names)
		if slices.ContainsFunc(packages, func(p string) bool {
			return strings.HasPrefix(p, "postgresql1") // postgresql.org's: postgresql15-server
		}) {
			lines = append(lines, "    (for those of postgresql.org: with its repository pgdg…-debuginfo enabled)")
		}
		return lines
	case s.is("ubuntu"):
		return append(command("apt install", packages),
			fmt.Sprintf("    (-dbgsym: from Ubuntu's archive of debug symbols, suite %s, component main)", s.suite("")))
	}
	return append(command("apt install", packages),
		fmt.Sprintf("    (-dbgsym: from Debian's archive debian-debug, suite %s, component main)", s.suite("-debug")))
}

func (s *system) suite(suffix string) string {
	if s.codename == "" {
		return "of this release"
	}
	return s.codename + suffix
}

// publicServers are the debuginfod servers that the distributions run.
var publicServers = []struct{ id, url string }{
	{"ubuntu", "https://debuginfod.ubuntu.com"},
	{"debian", "https://debuginfod.debian.net"},
	{"centos", "https://debuginfod.centos.org"},
	{"fedora", "https://debuginfod.fedoraproject.org"},
}

// debuginfod says how to get debug files without installing anything.
func (s *system) debuginfod(configured bool) []string {
	if configured {
		return []string{"pg_stat_backtrace symbols --fetch (a debuginfod server is configured)"}
	}
	url := "URL"
	if len(s.family) > 0 {
		for _, p := range publicServers {
			if s.family[0] == p.id {
				url = p.url
			}
		}
	}
	return []string{
		"without installing anything, from a debuginfod server:",
		"    DEBUGINFOD_URLS=" + url + " pg_stat_backtrace symbols --fetch",
	}
}

// width is the longest line of advice.
const width = 92

// command breaks a long command into lines that a shell takes as one.
func command(start string, words []string) []string {
	var lines []string
	line := start
	for _, w := range words {
		if len(line)+len(w)+3 > width {
			lines = append(lines, line+" \\")
			line = "   "
		}
		line += " " + w
	}
	return append(lines, line)
}

// wrap breaks a sentence into lines.
func wrap(text string) []string {
	var lines []string
	line := ""
	for w := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = "   "
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
