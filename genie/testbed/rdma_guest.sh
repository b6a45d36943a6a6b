#!/bin/busybox sh
# First process of an rdma-lab guest: the host's files, writable in memory only; one folder shared for real; then the
# command, whose exit code goes into the control folder inside the shared one. The kernel's command line sets GENIE_SHARE
# and GENIE_CONTROL. Kernel messages have the console; what the command prints goes to tty1, its errors to tty2.
b=/bin/busybox
root=/mnt/root
$b mount -t proc proc /proc
$b mount -t tmpfs tmpfs /mnt
$b mkdir /mnt/changes /mnt/work $root
$b mount -t overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work overlay $root || exec $b poweroff -f
$b mkdir -p "$root$GENIE_SHARE"
$b mount -t hostfs -o "$GENIE_SHARE" none "$root$GENIE_SHARE" || exec $b poweroff -f
$b mount -t proc proc $root/proc
$b mount -t sysfs sysfs $root/sys
$b mount -t devtmpfs devtmpfs $root/dev
$b mkdir -p $root/dev/pts $root/dev/shm
$b mount -t devpts devpts $root/dev/pts
for folder in dev/shm run tmp/.genie-guest; do
  $b mkdir -p $root/$folder
  $b mount -t tmpfs tmpfs $root/$folder
done
exec < /dev/null > $root/dev/tty1 2> $root/dev/tty2
$b stty -opost <&1
$b stty -opost <&2
$b chroot $root $b ip link set lo up
$b chroot $root $b sh "$GENIE_CONTROL/command"
echo $? > "$root$GENIE_CONTROL/exit-code"
$b poweroff -f
