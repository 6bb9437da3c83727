"""Every byte that touches a disk: files written whole, arrays read as maps, no pickle."""
