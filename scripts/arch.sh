# shellcheck shell=bash
# Virtual machines of other architectures, under qemu's emulation. They run Debian's kernel, with an initial file
# system made of Debian's unpacked packages of that architecture, and process 1 from tools/archcheck/init. Nothing
# is installed and the machine's dpkg gets no new architecture: apt uses a separate configuration for each
# architecture, and checks signatures and checksums. To be sourced after packages.sh.

ARCH_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# arch_facts GOARCH sets the properties of an architecture. They are Debian's name, the suite, the version of its
# PostgreSQL, the kernel's package, qemu's program and package, its machine with its memory, and kernel options (pages
# that tests need). riscv64 is in Debian since 13. ARCH_SUITE and ARCH_VERSION select another suite, with its version
# of PostgreSQL.
arch_facts() {
	SUITE=bookworm PG_MAJOR=15 MEMORY=3G BOOT='' KERNEL_ROOT='' CPUS=2
	case $1 in
	amd64)
		DEBIAN=amd64 KERNEL=linux-image-amd64 CONSOLE=ttyS0
		MEMORY=6G BOOT="hugepages=16 hugepagesz=1G hugepages=1"
		CPUS=1 # with two, the machine stops for ever when programs are attached to the scheduler's tracepoints
		QEMU=(qemu-system-x86_64 -M q35 -cpu max) QEMU_PACKAGES=(qemu-system-x86)
		;;
	arm64)
		DEBIAN=arm64 KERNEL=linux-image-arm64 CONSOLE=ttyAMA0
		QEMU=(qemu-system-aarch64 -M virt -cpu "max,pauth-impdef=on") QEMU_PACKAGES=(qemu-system-arm)
		;;
	ppc64le)
		DEBIAN=ppc64el KERNEL=linux-image-powerpc64le CONSOLE=hvc0
		QEMU=(qemu-system-ppc64 -M "pseries,x-vof=on,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken" -cpu power9 -vga none)
		QEMU_PACKAGES=(qemu-system-ppc)
		;;
	s390x)
		DEBIAN=s390x KERNEL=linux-image-s390x CONSOLE=ttysclp0
		QEMU=(qemu-system-s390x -M s390-ccw-virtio -cpu max) QEMU_PACKAGES=(qemu-system-misc)
		;;
	riscv64)
		DEBIAN=riscv64 SUITE=trixie PG_MAJOR=17 KERNEL=linux-image-riscv64 CONSOLE=ttyS0
		QEMU=(qemu-system-riscv64 -M virt -bios default) QEMU_PACKAGES=(qemu-system-misc opensbi)
		;;
	*) die "no virtual machine is known for the architecture $1" ;;
	esac
	SUITE=${ARCH_SUITE:-$SUITE} PG_MAJOR=${ARCH_VERSION:-$PG_MAJOR}
	ARCH_DIR=$CACHE/arch/$SUITE-$DEBIAN
}

# arch_apt prints options with which apt sees one suite of one architecture, and no installed packages.
arch_apt() {
	local mirror
	mirror=$(debian_mirror) || return
	mkdir -p "$ARCH_DIR/lists/partial" "$ARCH_DIR/archives/partial"
	printf 'deb [signed-by=%s] %s %s main\n' "$ARCH_KEYRING" "$mirror" "$SUITE" >"$ARCH_DIR/sources.list"
	printf '%s\n' -o "APT::Architecture=$DEBIAN" -o "APT::Architectures=$DEBIAN" \
		-o "Dir::Etc::sourcelist=$ARCH_DIR/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o "Dir::State::lists=$ARCH_DIR/lists" -o "Dir::Cache=$ARCH_DIR" -o Dir::State::status=/dev/null \
		-o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Acquire::Languages=none
}

# arch_packages OPTION...: print the kernel's and the server's packages, and the libraries that they need. Other
# dependencies are only needed for the installation.
arch_packages() {
	apt-get "$@" -s install --no-install-recommends "$KERNEL" "postgresql-$PG_MAJOR" busybox-static |
		awk '$1 == "Inst" {print $2}' |
		grep -E '^(lib|zlib1g|postgresql-(client-)?[0-9]|linux-(image|binary)-[0-9]|busybox|tzdata)' |
		grep -vE 'perl|llvm|z3|klibc|libc-(bin|l10n)|semanage|systemd-shared|apparmor'
}

# arch_fetch unpacks the packages into $ARCH_DIR/root, once.
arch_fetch() {
	[[ ! -e $ARCH_DIR/root/.complete ]] || return 0
	have apt-get || die "the packages of $DEBIAN need apt-get"
	[[ -e $ARCH_KEYRING ]] || die "$ARCH_KEYRING is missing" "package debian-archive-keyring"
	locked "arch-$DEBIAN" arch_fetch_locked
}

arch_fetch_locked() {
	local options packages new deb
	[[ ! -e $ARCH_DIR/root/.complete ]] || return 0
	say "Downloading Debian's kernel and PostgreSQL $PG_MAJOR for $DEBIAN (60 to 150 MB): kept in $ARCH_DIR"
	debian_mirror >/dev/null # ends the script without one
	mapfile -t options < <(arch_apt)
	quietly apt-get "${options[@]}" update
	mapfile -t packages < <(arch_packages "${options[@]}")
	[[ ${#packages[@]} -gt 20 ]] || die "apt finds no PostgreSQL $PG_MAJOR for $DEBIAN in $SUITE"
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	(cd "$new" && quietly apt-get "${options[@]}" download "${packages[@]}")
	for deb in "$new"/*.deb; do
		dpkg-deb -x "$deb" "$new"
		rm "$deb"
	done
	arch_keep_kernel "$new"
	touch "$new/.complete"
	rm -rf "$ARCH_DIR/root"
	mv "$new" "$ARCH_DIR/root"
}

# arch_keep_kernel ROOT: put the kernel of unpacked packages into ROOT/boot, and remove its modules.
arch_keep_kernel() {
	local kernel
	for kernel in "$1"/usr/lib/modules/*/vmlinuz; do # where it is since Debian 14
		[[ ! -e $kernel ]] || install -D "$kernel" "$1/boot/vmlinuz-$(basename "$(dirname "$kernel")")"
	done
	rm -rf "$1"/{,usr/}lib/modules
}

# arch_kernel SUITE PACKAGE sets KERNEL_ROOT to a folder with the kernel of another suite. PACKAGE is a metapackage.
arch_kernel() {
	local SUITE=$1 ARCH_DIR=$CACHE/arch/$1-$DEBIAN
	KERNEL_ROOT=$ARCH_DIR/$2
	[[ -e $KERNEL_ROOT/.complete ]] || locked "arch-$DEBIAN" arch_kernel_locked "$2"
}

arch_kernel_locked() {
	local options package new
	[[ ! -e $KERNEL_ROOT/.complete ]] || return 0
	say "Downloading $1 of Debian's $SUITE for $DEBIAN (40 to 80 MB): kept in $KERNEL_ROOT"
	debian_mirror >/dev/null # ends the script without one
	mapfile -t options < <(arch_apt)
	quietly apt-get "${options[@]}" update
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	for package in $(apt-get "${options[@]}" -s install --no-install-recommends "$1" |
		awk '$1 == "Inst" && $2 ~ /^linux-(image|binary|modules)-[0-9]/ {print $2}'); do
		(cd "$new" && quietly apt-get "${options[@]}" download "$package")
	done
	for package in "$new"/*.deb; do
		dpkg-deb -x "$package" "$new"
		rm "$package"
	done
	arch_keep_kernel "$new"
	compgen -G "$new/boot/vmlinu[xz]-*" >/dev/null || die "$SUITE has no kernel $1 for $DEBIAN"
	touch "$new/.complete"
	rm -rf "$KERNEL_ROOT"
	mv "$new" "$KERNEL_ROOT"
}

# fetch_npm_arm64 sets NPM_SERVER to the folder of npm's server for aarch64: all but four of its functions have no call
# frame information.
fetch_npm_arm64() {
	NPM_SERVER=$CACHE/npm/linux-arm64-$PG_NPM_DEFAULT
	[[ -e $NPM_SERVER/.complete ]] || locked npm fetch_npm_locked "$PG_NPM_DEFAULT" "$NPM_SERVER" linux-arm64
}

# need_qemu finds qemu, or installs it.
need_qemu() {
	have "${QEMU[0]}" && [[ $DEBIAN != riscv64 || -e /usr/share/qemu/opensbi-riscv64-generic-fw_dynamic.bin ]] && return 0
	{ is_root && have apt-get; } || die "${QEMU[0]} is missing" "packages ${QEMU_PACKAGES[*]}"
	apt_install "no ${QEMU[0]} here" "${QEMU_PACKAGES[@]}"
}

# arch_overlay DIR: the files of a machine that come from no package; process 1 runs DIR/check/run.
arch_overlay() {
	local goarch=$1 dir=$2
	mkdir -p "$dir/etc" "$dir/usr/bin" "$dir/check"
	(cd "$TOP" && CGO_ENABLED=0 GOARCH=$goarch "$GO" build -C "$TOP/tools" -trimpath -o "$dir/init" ./archcheck/init)
	ln -s busybox "$dir/usr/bin/sh"
	printf 'root:x:0:0::/:/bin/sh\npostgres:x:70:70::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$dir/etc/passwd"
	printf 'root:x:0:\npostgres:x:70:\nnogroup:x:65534:\n' >"$dir/etc/group"
}

# arch_boot LOG FOLDER...: boot a machine with the files of the folders; 0 if its script ended with status 0. LOG gets
# its output. KERNEL_ROOT, if not empty, is a folder with another kernel; see arch_kernel.
arch_boot() {
	local log=$1 kernel status boot=${KERNEL_ROOT:-$ARCH_DIR/root}/boot
	shift
	kernel=$(compgen -G "$boot/vmlinu[xz]-*" | head -n 1)
	[[ -n $kernel ]] || die "no kernel in $boot"
	(cd "$TOP" && GOARCH='' scripts/tool.sh archcheck/initramfs "$@") >"$WORK/initramfs"
	timeout "${ARCH_TIMEOUT:-3600}" "${QEMU[@]}" -smp "${ARCH_CPUS:-$CPUS}" -m "$MEMORY" -nographic -no-reboot -nic none \
		-kernel "$kernel" -initrd "$WORK/initramfs" -append "console=$CONSOLE rdinit=/init panic=-1 quiet loglevel=1 $BOOT" \
		</dev/null >"$log" 2>&1 || true
	sed -i 's/\r//g' "$log"
	rm -f "$WORK/initramfs"
	status=$(sed -n 's/^@@exit //p' "$log")
	[[ $status == 0 ]]
}

# The script of a machine that makes cores: they go over the console.
cores_script() {
	cat <<'SCRIPT'
busybox --install -s /usr/bin 2>/dev/null
echo /tmp/core >/proc/sys/kernel/core_pattern
echo 0 >/proc/sys/kernel/core_uses_pid
ulimit -c unlimited
for program in /check/programs/*; do
	rm -f /tmp/core
	$program
	echo "@@core ${program##*/}"
	gzip -c /tmp/core | base64
	echo "@@end"
done
exit 0
SCRIPT
}

# arch_cores GOARCH DIR: run the programs in DIR in a virtual machine until they crash, and store PROGRAM.core beside
# each.
arch_cores() {
	local overlay=$WORK/cores-$1 log=$WORK/cores-$1.log dir=$2 program name
	arch_facts "$1"
	need_qemu
	arch_fetch
	arch_overlay "$1" "$overlay"
	cp -r "$dir" "$overlay/check/programs"
	cores_script >"$overlay/check/run"
	arch_boot "$log" "$ARCH_DIR/root" "$overlay" || { tail -n 40 "$log" >&2; die "the machine of $1 failed"; }
	for program in "$overlay"/check/programs/*; do
		name=${program##*/}
		sed -n "/^@@core $name\$/,/^@@end/{/^@@/!p}" "$log" | base64 -d | gzip -dc >"$dir/$name.core"
		[[ -s $dir/$name.core ]] || die "$name: no core"
	done
	rm -rf "$overlay"
}
