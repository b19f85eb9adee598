package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// SymbolAdvice returns lines that say how to get the missing names and lines, or none if nothing is missing. The
// parameter again is the command that the user repeats afterwards. configured says whether a debuginfod server is
// configured.
func SymbolAdvice(images []SymbolImage, again string, configured bool) []string {
	g := gaps{configured: configured}
	for i := range images {
		g.add(&images[i])
	}
	var lines []string
	if len(g.server) > 0 {
		lines = append(lines, g.system.install(uniq(g.server))...)
	}
	if len(g.libraries) > 0 {
		if len(g.server) > 0 {
			lines = append(lines, "and of the libraries, which few stacks are in:")
		}
		slices.Sort(g.libraries)
		lines = append(lines, g.system.install(uniq(g.libraries))...)
	}
	if len(g.server)+len(g.libraries) > 0 {
		lines = append(lines, g.system.archive(append(g.server, g.libraries...))...)
	}
	if g.byBuildID {
		lines = append(lines, g.system.debuginfod(again, configured)...)
	}
	if len(g.unknown) > 0 {
		unknown := clean(strings.Join(uniq(g.unknown), ", "))
		lines = append(lines, wrap("of no package: "+unknown+". Only who built that has the "+
			"rest: build with -g, or put its debug files at /usr/lib/debug/.build-id/XX/YYYY.debug (XX and YYYY are "+
			"the build-id)")...)
	}
	if len(g.replaced) > 0 {
		replaced := clean(strings.Join(uniq(g.replaced), ", "))
		lines = append(lines, wrap("replaced or removed since the process began: "+replaced+
			". Debug packages of what is installed now do not fit; debuginfod may have the right ones, or restart the "+
			"process")...)
	}
	return lines
}

// gaps lists the images with missing names or lines, grouped by the remedy.
type gaps struct {
	// server lists the debug packages of the program, of PostgreSQL's modules and of the C library, in whose code
	// nearly all frames are. libraries lists the debug packages of the other images.
	server, libraries []string
	// unknown lists images that belong to no package, and replaced lists images whose file was replaced or removed.
	unknown, replaced []string
	// byBuildID means that a debuginfod server may have a missing file. For images without a package this is so only if
	// a server is configured.
	byBuildID  bool
	configured bool
	system     *system
}

// add examines one image. The first call must be for the program.
func (g *gaps) add(m *SymbolImage) {
	if m.Complete() || m.virtual() {
		return
	}
	g.byBuildID = g.byBuildID || m.BuildID != "" && (m.Package != "" || m.Deleted || g.configured)
	first := g.system == nil
	if first {
		at := systemAt(m.root)
		g.system = &at
	}
	switch {
	case m.Deleted:
		g.replaced = append(g.replaced, m.Name)
	case m.DebugPackage == "":
		g.unknown = append(g.unknown, m.Name)
	case first, strings.HasPrefix(m.Package, "postgresql"), m.Package == "libc6", m.Package == "glibc":
		g.server = append(g.server, m.DebugPackage)
	default:
		g.libraries = append(g.libraries, m.DebugPackage)
	}
}

// uniq returns each name once, in the order of first occurrence.
func uniq(names []string) []string {
	var all []string
	for _, n := range names {
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// install returns the command that installs debug packages.
func (s *system) install(packages []string) []string {
	if !s.redHat() {
		return command("apt install", packages)
	}
	names := make([]string, len(packages)) // dnf debuginfo-install takes the names without -debuginfo
	for i, p := range packages {
		names[i] = strings.TrimSuffix(p, debuginfoSuffix)
	}
	return command("dnf debuginfo-install", names)
}

func (s *system) redHat() bool { return s.is("rhel", "fedora", "centos") }

// archive returns a line that says in which archive the debug packages are, or none if they are in the same repository
// as the other packages.
func (s *system) archive(packages []string) []string {
	has := func(is func(string) bool) bool { return slices.ContainsFunc(packages, is) }
	switch {
	case s.redHat():
		if has(func(p string) bool { return strings.HasPrefix(p, "postgresql1") }) { // of postgresql.org, as postgresql15-server
			return []string{"    (for those of postgresql.org: with its repository pgdg…-debuginfo enabled)"}
		}
		return nil
	case !has(func(p string) bool { return strings.HasSuffix(p, dbgsymSuffix) }):
		return nil
	case s.is("ubuntu"):
		return []string{fmt.Sprintf("    (-dbgsym: from Ubuntu's archive of debug symbols, suite %s, component main)",
			s.suite(""))}
	}
	return []string{fmt.Sprintf("    (-dbgsym: from Debian's archive debian-debug, suite %s, component main)",
		s.suite("-debug"))}
}

func (s *system) suite(suffix string) string {
	if s.codename == "" {
		return "of this release"
	}
	return s.codename + suffix
}

// publicServers are the debuginfod servers of the distributions.
var publicServers = []struct{ id, url string }{
	{"ubuntu", "https://debuginfod.ubuntu.com"},
	{"debian", "https://debuginfod.debian.net"},
	{"centos", "https://debuginfod.centos.org"},
	{"fedora", "https://debuginfod.fedoraproject.org"},
}

// debuginfod returns lines that say how to get debug files from a debuginfod server.
func (s *system) debuginfod(again string, configured bool) []string {
	if configured {
		return []string{again + " --fetch", "    (a debuginfod server is configured)"}
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
		"    " + again + " --fetch --debuginfod " + url,
		"or let the worker get what its stacks need:",
		"    pg_stat_backtrace worker --debuginfod " + url,
	}
}

// width is the longest line of advice, in characters.
const width = 92

// command breaks a long command into lines that end in a backslash.
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

// wrap breaks a sentence into lines of at most width characters.
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
