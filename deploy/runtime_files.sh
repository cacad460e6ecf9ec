#!/usr/bin/env bash
# Gathers what the container image holds: the three programs, the shared libraries that ldd says they load, the licences
# of all of it, and Debian's package records of those libraries, which vulnerability scanners read.
#
#   deploy/runtime_files.sh TARGET BUILD    from the programs in BUILD; TARGET/root is the image's /, TARGET/profiles
#                                           its one directory that the server may write to
#
# Libraries come from the machine it runs on, so that must be the machine (or the build stage) that made the programs.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# = 2 ] || { echo "usage: deploy/runtime_files.sh TARGET BUILD" >&2; exit 2; }
target=$1 build=$2
fail() { echo "runtime_files: $1" >&2; exit 1; }
[ ! -e "$target" ] || fail "$target is there already"

root=$target/root
library_folder=/usr/lib/$(uname -m)-linux-gnu
documents=$root/usr/share/doc
mkdir -p "$root"/{etc,models,usr/bin,usr/lib64,var/lib/dpkg/status.d} "$root$library_folder" "$documents/ripplekv" "$target/profiles"
# As in Debian, /lib and /lib64 are parts of /usr.
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
cp LICENSE "$documents/ripplekv/copyright"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
loaded=$work/loaded
# shellcheck disable=SC2016
echo 'file(RPATH_REMOVE FILE "${PROGRAM}")' > "$work/remove_rpath.cmake"
for program in ripplekv-server ripplekv-calibration-server ripplekv; do
  [ -x "$build/$program" ] || fail "no $build/$program: build it first"
  if ldd "$build/$program" | grep 'not found'; then fail "$build/$program lacks a library"; fi
  ldd "$build/$program" >> "$loaded"
  install -m 755 "$build/$program" "$root/usr/bin/"
  # It names the folder of the build's libraries; in the image all of them are where the loader looks anyway.
  cmake -DPROGRAM="$(realpath "$root/usr/bin/$program")" -P "$work/remove_rpath.cmake"
  strip "$root/usr/bin/$program"
done

# Records and copyright of the package that a file is from; fails where it is from none.
record_package() {
  local package
  package=$(dpkg-query -S "$1" 2> /dev/null | head -n 1) || return 1
  package=${package%%: *}
  package=${package%%:*}
  [ ! -e "$root/var/lib/dpkg/status.d/$package" ] || return 0
  dpkg-query -s "$package" > "$root/var/lib/dpkg/status.d/$package"
  mkdir -p "$documents/$package"
  cp "/usr/share/doc/$package/copyright" "$documents/$package/"
}

# "name => path (address)"; the loader has its path only.
awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }' "$loaded" | sort -u | while read -r path; do
  real=$(realpath "$path")
  folder=$root$library_folder
  case "$path" in /lib64/*) folder=$root/usr/lib64 ;; esac
  install -m 755 "$real" "$folder/$(basename "$path")"
  # dpkg knows the path with or without /usr.
  if ! record_package "$real" && ! record_package "${real#/usr}"; then
    # LibTorch, from Python's torch, whose licences are beside it. A fifth of it are symbols that nothing reads.
    strip --strip-unneeded "$folder/$(basename "$path")"
    packages=$(dirname "$(dirname "$(dirname "$real")")")
    mkdir -p "$documents/libtorch"
    cp -r "$packages"/torch-*.dist-info/licenses/. "$documents/libtorch/" || fail "$path: neither a Debian package's nor LibTorch's"
  fi
done

printf 'root:x:0:0:root:/:/sbin/nologin\nripplekv:x:10001:10001:RippleKV:/:/sbin/nologin\n' > "$root/etc/passwd"
printf 'root:x:0:\nripplekv:x:10001:\n' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"
cp /etc/os-release "$root/etc/os-release"
