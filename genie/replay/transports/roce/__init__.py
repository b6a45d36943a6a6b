"""Software RoCEv2: reliable connected queue pairs in user space, in packets that switches cannot tell from a NIC's."""
