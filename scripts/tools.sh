# shellcheck shell=bash
# The programs that tests and linters need: pinned linters, pg_regress, and Perl modules. To be sourced after
# postgresql.sh.

GOLANGCI_VERSION=2.6.1

# need_golangci sets GOLANGCI.
need_golangci() {
	local dir=$CACHE/golangci-lint-$GOLANGCI_VERSION
	GOLANGCI=$dir/golangci-lint
	if [[ ! -x $GOLANGCI ]]; then
		say "Building golangci-lint $GOLANGCI_VERSION into $dir (some minutes, once)"
		GOFLAGS='' GOBIN=$dir quietly "$GO" install \
			"github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$GOLANGCI_VERSION"
	fi
}

# need_shellcheck sets SHELLCHECK.
need_shellcheck() {
	SHELLCHECK=$(command -v shellcheck || true)
	if [[ -z $SHELLCHECK ]]; then
		deb_unpack shellcheck shellcheck
		SHELLCHECK=$CACHE/debs/shellcheck/usr/bin/shellcheck
	fi
}

# postgresql_tests sets PG_TESTS to the folder of PostgreSQL's test programs and modules. It is the folder of the
# installation, or of Debian's client package, unpacked and not installed. (Installing may upgrade a running server.)
postgresql_tests() {
	local major=${PG_VERSION%%[!0-9]*}
	PG_TESTS=$PG_HOME_LIB/pgxs/src/test
	[[ ! -d $PG_TESTS/perl ]] || return 0
	have apt-cache || die "PostgreSQL's test modules are missing: $PG_TESTS/perl"
	apt_query show "postgresql-client-$major" >/dev/null || major=$(debian_major)
	deb_unpack "client-$major" "postgresql-client-$major"
	PG_TESTS=$CACHE/debs/client-$major/usr/lib/postgresql/$major/lib/pgxs/src/test
}

# need_race_detector says whether go test can use it: it needs a C compiler, which root can install.
need_race_detector() {
	if ! have gcc && is_root && have apt-get; then
		apt_install "Go's race detector needs a C compiler" gcc libc6-dev
	fi
	have gcc
}

# need_pg_regress sets PG_REGRESS, readable for the server's user.
need_pg_regress() {
	PG_REGRESS=$PG_HOME_LIB/pgxs/src/test/regress/pg_regress
	if [[ ! -x $PG_REGRESS ]]; then
		postgresql_tests
		PG_REGRESS=$PG_TESTS/regress/pg_regress
	fi
	readable PG_REGRESS
}

# need_perl_modules sets PROVE and PERL_PATH: Perl's test tools, IPC::Run and PostgreSQL::Test.
need_perl_modules() {
	local dir dirs=() packages=()
	postgresql_tests
	dirs+=("$PG_TESTS/perl")
	if ! perl -MTest::More -MTime::HiRes -e 1 2>/dev/null || ! have prove; then
		if is_root && have apt-get; then
			apt_install "the TAP tests need Perl's test modules" perl
		else
			mapfile -t packages < <(deb_closure perl)
			deb_unpack perl "${packages[@]}"
			mapfile -t -O "${#dirs[@]}" dirs < <(perl_dirs "$CACHE/debs/perl")
		fi
	fi
	if ! perl -MIPC::Run -e 1 2>/dev/null; then
		deb_unpack ipc-run libipc-run-perl
		dirs+=("$CACHE/debs/ipc-run/usr/share/perl5")
	fi
	# shellcheck disable=SC2034 # for check.sh
	PROVE=("$(command -v prove || echo "$CACHE/debs/perl/usr/bin/prove")" --directives)
	PERL_PATH=
	for dir in "${dirs[@]}"; do
		readable dir
		PERL_PATH+=${PERL_PATH:+:}$dir
	done
}

perl_dirs() { find "$1"/usr/share/perl "$1"/usr/lib/*/perl -mindepth 1 -maxdepth 1 -type d -name '5.*'; }

# readable NAME: make the file or folder that variable NAME holds readable for the server's user, by a copy if need be.
readable() {
	local -n path=$1
	local copy
	! as_server test -r "$path" || return 0
	copy=$(mktemp -d "$WORK/copy.XXXXXX")
	cp -rL "$path" "$copy/"
	chmod -R a+rX "$copy"
	path=$copy/${path##*/}
}
